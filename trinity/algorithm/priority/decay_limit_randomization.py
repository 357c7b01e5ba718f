"""`linear_decay` with a limit on the uses and with randomization."""

from trinity.algorithm.priority.candidate import Candidate


def decay_limit_randomization(
    candidate: Candidate, *, decay: float = 2.0, use_count_limit: int = 3, sigma: float = 0.0
) -> float | None:
    """`linear_decay` plus `sigma` times a normal; at most `use_count_limit` uses, 0 is no limit."""
    if 0 < use_count_limit <= candidate.use_count:
        return None
    decayed = candidate.model_version - decay * candidate.use_count
    return decayed + sigma * candidate.normal
