"""Reports calls of workflows and rewards that still run after their run is over."""

import logging
from collections.abc import Sequence
from typing import Protocol

from trinity.members import Heartbeats

logger = logging.getLogger(__name__)

EXPLORING = "exploring"


class Losing(Protocol):
    """Runs calls that may go on after the wait for their result has ended."""

    @property
    def num_lost(self) -> int: ...


class LostWatch:
    """Keeps the activity shown in heartbeats up to date."""

    def __init__(self, *, beats: Heartbeats, of: Sequence[Losing]) -> None:
        self._beats = beats
        self._of = of
        self._num_lost = 0

    def look(self) -> None:
        """Updates the activity with the number of calls of users' code that outlive their run."""
        num_lost = sum(runner.num_lost for runner in self._of)
        if num_lost > self._num_lost:
            logger.warning("calls of users' code outlive their runs", extra={"calls": num_lost})
        self._num_lost = num_lost
        lost = f"; {num_lost} calls of users' code outlive their runs" if num_lost else ""
        self._beats.set_activity(EXPLORING + lost)
