"""Priority functions as a user may bring them."""

import os
import signal
import time
from pathlib import Path

from trinity.algorithm.priority import PRIORITIES
from trinity.algorithm.priority.candidate import Candidate


@PRIORITIES.register_module("oldest_first")
def oldest_first(candidate: Candidate, *, weight: float = 1.0) -> float | None:
    """The other way round, and nothing more than twice."""
    return None if candidate.use_count > 1 else -weight * candidate.model_version


def deadly(candidate: Candidate, *, folder: str, deaths: int, how: str = "SIGKILL") -> float:
    """Its process is killed, or frozen, in the middle of so many computations."""
    if candidate.use_count == 1:
        done = len(list(Path(folder).iterdir()))
        if done < deaths:
            (Path(folder) / str(done)).touch()
            os.kill(os.getpid(), getattr(signal, how))
    return float(-candidate.model_version)


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
