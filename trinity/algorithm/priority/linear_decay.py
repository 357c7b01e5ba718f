"""Prefers newer weights; each use counts as if they were older."""

from trinity.algorithm.priority.candidate import Candidate


def linear_decay(candidate: Candidate, *, decay: float = 2.0) -> float | None:
    """The version, less `decay` for each batch that the sample was in."""
    return candidate.model_version - decay * candidate.use_count
