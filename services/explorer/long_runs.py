"""Shows the longest of the runs that take long, with its deadline."""

import asyncio
import contextlib
import time
from collections.abc import Iterator
from typing import NoReturn

from services.explorer.assignments import Kind
from services.explorer.outcome import Attempt
from services.explorer.time_limit import TimeLimit
from trinity.waits import Waits

LOOK_SECONDS = 0.5
SHOWN_AFTER_SECONDS = 2.0


class LongRuns:
    """Tracks running attempts; most end before they need to be shown.

    with long_runs.going_on(attempt):
        outcome = await runner.run(attempt, weights)
    """

    def __init__(self, *, waits: Waits, limit: TimeLimit) -> None:
        self._waits = waits
        self._limit = limit
        self._open: dict[object, tuple[Attempt, float]] = {}
        """Ordered by start."""
        self._shown = ""

    @contextlib.contextmanager
    def going_on(self, attempt: Attempt) -> Iterator[None]:
        """Tracks the attempt until the block ends."""
        token = object()
        self._open[token] = attempt, time.monotonic()
        try:
            yield
        finally:
            del self._open[token]

    async def run(self) -> NoReturn:
        """Runs until cancelled."""
        try:
            while True:
                self._look()
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            self._show("")

    def _look(self) -> None:
        longest, since = next(iter(self._open.values()), (None, 0.0))
        waited = time.monotonic() - since
        if longest is None or waited < SHOWN_AFTER_SECONDS:
            self._show("")
            return
        self._show(_name(longest))
        self._waits.set(
            self._shown,
            waits_for="workflow",
            reason=_describe(longest),
            deadline_seconds=self._limit.of(longest.assignment),
            waited_seconds=waited,
        )

    def _show(self, name: str) -> None:
        if self._shown and self._shown != name:
            self._waits.clear(self._shown)
        self._shown = name


def _name(attempt: Attempt) -> str:
    return f"run {attempt.assignment.id} {attempt.run} {attempt.number}"


def _describe(attempt: Attempt) -> str:
    assignment = attempt.assignment
    step = "evaluation of version" if assignment.kind is Kind.EVAL else "explore step"
    return (
        f"to end run {attempt.run} of row {assignment.task_index} of {assignment.taskset} "
        f"({step} {assignment.explore_step}, attempt {attempt.number})"
    )
