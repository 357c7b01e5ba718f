"""Workflows and rewards whose run is over and that go on: said, where people look."""

import logging
from collections.abc import Sequence
from typing import Protocol

from trinity.members import Heartbeats

logger = logging.getLogger(__name__)

EXPLORING = "exploring"


class Losing(Protocol):
    """Runs calls that may go on when nobody waits for them any more."""

    @property
    def num_lost(self) -> int: ...


class LostWatch:
    """Keeps the activity that others see up to date while runs go on."""

    def __init__(self, *, beats: Heartbeats, of: Sequence[Losing]) -> None:
        self._beats = beats
        self._of = of
        self._num_lost = 0

    def look(self) -> None:
        """Say what is done, and how many calls of users' code outlive their run."""
        num_lost = sum(one.num_lost for one in self._of)
        if num_lost > self._num_lost:
            logger.warning("calls of users' code outlive their runs", extra={"calls": num_lost})
        self._num_lost = num_lost
        lost = f"; {num_lost} calls of users' code outlive their runs" if num_lost else ""
        self._beats.set_activity(EXPLORING + lost)
