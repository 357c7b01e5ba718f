"""Executes the runs of a stage, and shows the longest of those that take long."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NoReturn

from services.explorer.delivery.outbox import Outbox
from services.explorer.retry import RolloutStageFailed
from services.explorer.rollout.runner import AttemptRunner, RunTimeLimit
from services.explorer.rollout.weight_gate import WeightGate, WeightsLost
from services.explorer.telemetry import (
    AbandonedCallReporter,
    ExploreStepLog,
    RunnerNumbers,
    record_run,
    run_span,
)
from services.explorer.types import (
    Assignment,
    Attempt,
    AttemptResult,
    CommitOutcome,
    ResultReport,
    RolloutKind,
    attempt_result_to_proto,
)
from trinity.api.v1.experience_pb2 import RunResult
from trinity.runtime.logs import RateLimitedLog
from trinity.runtime.presence import WaitRegistry
from trinity.types import StageKey

logger = logging.getLogger(__name__)
limited_log = RateLimitedLog(logger)


REPORT_SECONDS = 0.5
SHOWN_AFTER_SECONDS = 2.0


class LongRunReporter:
    """Tracks running attempts; most end before they need to be shown.

    with long_runs.track(attempt):
        result = await runner.run_attempt(attempt, weights)
    """

    def __init__(self, *, waits: WaitRegistry, limit: RunTimeLimit) -> None:
        self._waits = waits
        self._limit = limit
        self._open: dict[object, tuple[Attempt, float]] = {}
        """Ordered by start."""
        self._shown = ""

    @contextlib.contextmanager
    def track(self, attempt: Attempt) -> Iterator[None]:
        """Tracks the attempt until the block ends."""
        token = object()
        self._open[token] = attempt, time.monotonic()
        try:
            yield
        finally:
            del self._open[token]

    async def report_long_runs(self) -> NoReturn:
        """Runs until cancelled."""
        try:
            while True:
                self._report_longest()
                await asyncio.sleep(REPORT_SECONDS)
        finally:
            self._show("")

    def _report_longest(self) -> None:
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
            deadline_seconds=self._limit.seconds_for(longest.assignment),
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
    step = "evaluation of version" if assignment.kind is RolloutKind.EVAL else "explore step"
    return (
        f"to end run {attempt.run} of row {assignment.task_index} of {assignment.taskset} "
        f"({step} {assignment.explore_step}, attempt {attempt.number})"
    )


class RunExecutor:
    """Executes the runs of a stage, any number of them at a time."""

    def __init__(
        self,
        *,
        key: StageKey,
        max_attempts: int,
        runner: AttemptRunner,
        gate: WeightGate,
        outbox: Outbox,
        abandoned_calls: AbandonedCallReporter,
        long_runs: LongRunReporter,
        runners: RunnerNumbers,
        steps: ExploreStepLog,
    ) -> None:
        self._key = key
        self._max_attempts = max_attempts
        self._runner = runner
        self._gate = gate
        self._outbox = outbox
        self._abandoned_calls = abandoned_calls
        self._long_runs = long_runs
        self._runners = runners
        self._steps = steps

    def calls(self, assignment: Assignment) -> list[tuple[int, ...]]:
        """Returns the runs of an assignment by the calls of its workflow that make them."""
        if len(assignment.runs) > 1 and self._runner.runs_together(assignment):
            return [assignment.runs]
        return [(run,) for run in assignment.runs]

    async def execute_runs(
        self, assignment: Assignment, runs: tuple[int, ...], on_run_over: Callable[[], None]
    ) -> bool:
        """Executes runs by calls of the workflow, until each is complete or has no attempt left.

        Returns false if the buffer refused results and recorded failures.
        """
        left = [Attempt(key=self._key, assignment=assignment, run=run, number=-1) for run in runs]
        last: dict[int, Attempt] = {}
        reports: list[tuple[int, asyncio.Future[ResultReport]]] = []
        for number in self._numbers(assignment):
            left = [replace(attempt, number=number) for attempt in left]
            messages = await self._messages(left)
            last |= {attempt.run: attempt for attempt in left}
            reports += [(m.run, self._outbox.enqueue_result(m)) for m in messages]
            complete = {m.run for m in messages if m.state == RunResult.STATE_COMPLETE}
            left = [attempt for attempt in left if attempt.run not in complete]
            if not left:
                break
        for _ in runs:
            on_run_over()
        return await self._are_taken(last, reports)

    async def _are_taken(
        self, last: dict[int, Attempt], reports: list[tuple[int, asyncio.Future[ResultReport]]]
    ) -> bool:
        """Waits for the buffer's reports; returns false if it refused a result."""
        refused: dict[int, str] = {}
        for run, future in reports:
            report = await future
            if report.outcome is CommitOutcome.REJECTED:
                refused.setdefault(run, report.reason)
        for run, reason in refused.items():
            await self._report_rejection(last[run], reason)
        return not refused

    async def _messages(self, attempts: list[Attempt]) -> list[RunResult]:
        try:
            return [_message(result) for result in await self._execute_attempts(attempts)]
        except WeightsLost as error:
            limited_log.warning("runs cannot be made", reason=str(error))
            lost = [AttemptResult(attempt=attempt, failure=str(error)) for attempt in attempts]
            return [_message(result) for result in lost]

    async def _execute_attempts(self, attempts: list[Attempt]) -> list[AttemptResult]:
        first = attempts[0]
        async with self._gate.hold(first.assignment.required) as weights:
            with self._long_runs.track(first), run_span(first, weights) as span:
                with self._runners.running():
                    results = await self._runner.run_attempts(attempts, weights)
                for result in results:
                    record_run(span, result)
                    self._steps.record(result)
        self._abandoned_calls.report()
        return [replace(result, traceparent=span.traceparent) for result in results]

    def _numbers(self, assignment: Assignment) -> range:
        return range(assignment.first_attempt, assignment.first_attempt + self._max_attempts)

    async def _report_rejection(self, last: Attempt, reason: str) -> None:
        """Reports a failed attempt, without which the run of a refused result would never end.

        Raises: RolloutStageFailed when the buffer refuses that too.
        """
        assignment = last.assignment
        logger.error(
            "the buffer refused a result: the run counts as failed",
            extra={"assignment": assignment.id, "run": last.run, "reason": reason},
        )
        attempt = replace(last, number=last.number + 1)
        failure = f"the buffer refused attempt {last.number}: {reason}"
        report = await self._outbox.enqueue_result(
            attempt_result_to_proto(AttemptResult(attempt=attempt, failure=failure))
        )
        if report.outcome is CommitOutcome.REJECTED:
            raise RolloutStageFailed(
                f"the buffer refuses results of assignment {assignment.id} and their failure: "
                f"{report.reason}"
            )


def _message(result: AttemptResult) -> RunResult:
    """Converts a result; one that cannot be serialized becomes a failure of its workflow."""
    try:
        return attempt_result_to_proto(result)
    except Exception as error:  # the user's values, of whatever type
        failure = f"its experiences cannot be sent: {type(error).__name__}: {error}"
        return attempt_result_to_proto(AttemptResult(attempt=result.attempt, failure=failure))
