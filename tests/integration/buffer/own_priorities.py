"""Priority functions as a user may bring them."""

import time

from trinity.algorithm.priority import PRIORITIES
from trinity.algorithm.priority.candidate import Candidate


@PRIORITIES.register_module("oldest_first")
def oldest_first(candidate: Candidate, *, weight: float = 1.0) -> float | None:
    """The other way round, and nothing more than twice."""
    return None if candidate.use_count > 1 else -weight * candidate.model_version


def broken(candidate: Candidate) -> float:
    """It cannot be used."""
    return 1.0 / candidate.use_count


def endless(candidate: Candidate) -> float:
    """It does not come to an end."""
    time.sleep(3600)
    return candidate.reward or 0.0


def wordy(candidate: Candidate) -> str:
    """It gives no number."""
    return "high" if candidate.use_count else "low"
