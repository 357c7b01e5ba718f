"""The input type of priority functions: a sample that waits for a batch.

# my_priorities.py, in a plugin folder
@PRIORITIES.register_module("surprising")
def surprising(candidate: Candidate, *, decay: float = 1.0) -> float | None:
    return abs(candidate.advantage) - decay * candidate.use_count
"""

from collections.abc import Callable
from dataclasses import dataclass

PriorityFn = Callable[..., float | None]
"""Takes a positional candidate and keyword arguments; the highest comes first, None never again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A sample; all values are the same whenever the same batch is requested."""

    model_version: int
    """The oldest weights that generated it."""
    use_count: int
    """Number of batches that it was in."""
    reward: float | None
    advantage: float
    normal: float
    """A standard normal draw, the same for all samples of a group with the same use count."""
