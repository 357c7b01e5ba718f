"""What a priority function sees of a sample that waits for a batch.

# my_priorities.py, in a plugin folder
@PRIORITIES.register_module("surprising")
def surprising(candidate: Candidate, *, decay: float = 1.0) -> float | None:
    return abs(candidate.advantage) - decay * candidate.use_count
"""

from collections.abc import Callable
from dataclasses import dataclass

PriorityFn = Callable[..., float | None]
"""Takes a candidate by place and arguments by name; the highest comes first, None never again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A sample; everything here is the same whenever the same batch is asked for."""

    model_version: int
    """The oldest weights that made it."""
    use_count: int
    """Batches that it was in."""
    reward: float | None
    advantage: float
    normal: float
    """Chance: normally distributed, one number for all samples of a group that were used alike."""
