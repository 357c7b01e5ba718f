"""Threads of workflows and rewards whose run is over and that go on: said, where people look."""

import logging

from trinity.members import Heartbeats
from trinity.threads import DaemonThreads

logger = logging.getLogger(__name__)

EXPLORING = "exploring"


class ThreadWatch:
    """Keeps the activity that others see up to date while runs go on."""

    def __init__(self, *, beats: Heartbeats, threads: tuple[DaemonThreads, ...]) -> None:
        self._beats = beats
        self._threads = threads
        self._num_lost = 0

    def look(self) -> None:
        """Say what is done, and how many threads outlive their run."""
        num_lost = sum(threads.num_lost for threads in self._threads)
        if num_lost > self._num_lost:
            logger.warning("threads outlive their runs", extra={"threads": num_lost})
        self._num_lost = num_lost
        lost = f"; {num_lost} threads outlive their runs" if num_lost else ""
        self._beats.set_activity(EXPLORING + lost)
