"""Shows the longest of the runs that take long, with its deadline."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NoReturn

from services.explorer.counters import LostWatch
from services.explorer.delivery.outbox import Unconfirmed
from services.explorer.retry import StageFailed
from services.explorer.rollout.runner import Runner, TimeLimit
from services.explorer.rollout.weight_gate import WeightGate
from services.explorer.telemetry import sampled, sampling
from services.explorer.types import Assignment, Attempt, Fate, Kind, Outcome, outcome_to_proto
from trinity.api.v1.experience_pb2 import RunResult
from trinity.runtime.presence import WaitRegistry
from trinity.types import StageKey

logger = logging.getLogger(__name__)


LOOK_SECONDS = 0.5
SHOWN_AFTER_SECONDS = 2.0


class LongRuns:
    """Tracks running attempts; most end before they need to be shown.

    with long_runs.going_on(attempt):
        outcome = await runner.run(attempt, weights)
    """

    def __init__(self, *, waits: WaitRegistry, limit: TimeLimit) -> None:
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


class RunWork:
    """Executes the runs of a stage, any number of them at a time."""

    def __init__(
        self,
        *,
        key: StageKey,
        max_attempts: int,
        runner: Runner,
        gate: WeightGate,
        unconfirmed: Unconfirmed,
        lost: LostWatch,
        long_runs: LongRuns,
    ) -> None:
        self._key = key
        self._max_attempts = max_attempts
        self._runner = runner
        self._gate = gate
        self._unconfirmed = unconfirmed
        self._lost = lost
        self._long_runs = long_runs

    async def work(
        self, assignment: Assignment, run: int, on_attempts_over: Callable[[], None]
    ) -> bool:
        """Executes a run; returns false if the buffer refused results and recorded a failure."""
        attempt = Attempt(key=self._key, assignment=assignment, run=run, number=-1)
        reports = []
        for number in self._numbers(assignment):
            attempt = replace(attempt, number=number)
            async with self._gate.hold(assignment.required) as weights:
                with self._long_runs.going_on(attempt), sampling(attempt, weights) as span:
                    outcome = await self._runner.run(attempt, weights)
                    sampled(span, outcome)
            self._lost.look()
            message = _message(replace(outcome, traceparent=span.traceparent))
            reports.append(self._unconfirmed.add(message))
            if message.state == RunResult.STATE_COMPLETE:
                break
        on_attempts_over()
        for report in [await future for future in reports]:
            if report.fate is Fate.REJECTED:
                await self._report_refused(attempt, report.reason)
                return False
        return True

    def _numbers(self, assignment: Assignment) -> range:
        return range(assignment.first_attempt, assignment.first_attempt + self._max_attempts)

    async def _report_refused(self, last: Attempt, reason: str) -> None:
        """Reports a failed attempt, without which the run of a refused result would never end.

        Raises: StageFailed when the buffer refuses that too.
        """
        assignment = last.assignment
        logger.error(
            "the buffer refused a result: the run counts as failed",
            extra={"assignment": assignment.id, "run": last.run, "reason": reason},
        )
        attempt = replace(last, number=last.number + 1)
        failure = f"the buffer refused attempt {last.number}: {reason}"
        report = await self._unconfirmed.add(
            outcome_to_proto(Outcome(attempt=attempt, failure=failure))
        )
        if report.fate is Fate.REJECTED:
            raise StageFailed(
                f"the buffer refuses results of assignment {assignment.id} and their failure: "
                f"{report.reason}"
            )


def _message(outcome: Outcome) -> RunResult:
    """Converts an outcome; one that cannot be serialized becomes a failure of its workflow."""
    try:
        return outcome_to_proto(outcome)
    except Exception as error:  # the user's values, of whatever type
        failure = f"its experiences cannot be sent: {type(error).__name__}: {error}"
        return outcome_to_proto(Outcome(attempt=outcome.attempt, failure=failure))
