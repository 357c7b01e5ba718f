"""Leases and executes the work of a stage; a lease is kept until all its results are committed."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NoReturn

from services.explorer.clients.buffer import ExplorerBufferClient, LeaseKeeper
from services.explorer.delivery.outbox import CommitDeadline, Outbox
from services.explorer.rollout.runner import AttemptRunner, RunTimeLimit
from services.explorer.rollout.weight_gate import WeightGate, WeightsLost
from services.explorer.telemetry import (
    AbandonedCallReporter,
    ExploreStepLog,
    RolloutCounters,
    RunnerNumbers,
    record_run,
    run_span,
)
from services.explorer.types import (
    Assignment,
    Attempt,
    AttemptResult,
    CommitOutcome,
    ExplorerStopped,
    LeaseResponse,
    NoWorkYet,
    ResultReport,
    RolloutKind,
    StageDrained,
    StageEnd,
    WorkGranted,
    attempt_result_to_proto,
)
from trinity.api.v1.experience_pb2 import RunResult
from trinity.errors import RolloutStageFailed
from trinity.runtime.logs import RateLimitedLog
from trinity.runtime.presence import WaitRegistry
from trinity.runtime.retry import RetryPolicy
from trinity.types import StageKey

logger = logging.getLogger(__name__)
limited_log = RateLimitedLog(logger)

REPORT_SECONDS = 0.5
SHOWN_AFTER_SECONDS = 2.0
REQUEST_SHOWN_AFTER_SECONDS = 1.0
WORK_WAIT = "work"


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
        self._show(f"run {longest.assignment.id} {longest.run} {longest.number}")
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
                f"the buffer refuses results of assignment {assignment.id}, and the report that "
                f"they failed: {report.reason}"
            )


def _message(result: AttemptResult) -> RunResult:
    """Converts a result; one that cannot be serialized becomes a failure of its workflow."""
    try:
        return attempt_result_to_proto(result)
    except Exception as error:  # the user's values, of whatever type
        failure = f"its experiences cannot be sent: {type(error).__name__}: {error}"
        return attempt_result_to_proto(AttemptResult(attempt=result.attempt, failure=failure))


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutLimits:
    """Limits on the work in progress, and the weights it needs."""

    max_runs: int
    """Most runs that are leased and not yet over."""
    max_unconfirmed: int
    """Most results that are not committed yet."""
    runs_per_assignment: int
    lease_seconds: float
    requires_exact_version: bool
    """True if a training run needs exactly the version that its lease names."""
    cuts_stragglers: bool = False
    """True if explore steps leave slow tasks behind."""


class IdleTimeout:
    """Tracks how long the buffer has given the same reason for having no work."""

    def __init__(self, retry_policy: RetryPolicy) -> None:
        self._retry_policy = retry_policy
        self._reason: str | None = None
        self._since = 0.0

    @property
    def seconds_left(self) -> float:
        """Seconds for which the buffer's last reason may still stay the same."""
        if self._reason is None:
            return self._retry_policy.seconds
        return max(self._retry_policy.seconds - (time.monotonic() - self._since), 0.0)

    def show_request(self) -> contextlib.AbstractContextManager[None]:
        """Shows that work is being requested, until the buffer has given a reason."""
        if self._reason is not None:
            return contextlib.nullcontext()
        return self._retry_policy.waits.waiting_if_longer(
            REQUEST_SHOWN_AFTER_SECONDS,
            for_="buffer",
            reason="to lease work",
            deadline_seconds=self._retry_policy.deadline_seconds,
        )

    def record_reason(self, answer: NoWorkYet, *, is_idle: bool) -> None:
        """Records the buffer's newest reason; there is no deadline while this process has runs.

        Raises: RolloutStageFailed when the reason stays the same for too long.
        """
        reason, now = answer.reason, time.monotonic()
        if reason != self._reason or not is_idle:
            self.reset()
            self._reason, self._since = reason, now
        if now - self._since >= self._retry_policy.seconds:
            raise self._retry_policy.deadline_error("buffer", f"to have work: {reason}")
        self._retry_policy.waits.set(
            WORK_WAIT,
            waits_for="buffer",
            reason=reason,
            deadline_seconds=self._retry_policy.deadline_seconds if is_idle else 0.0,
            kind=answer.waits_for,
        )

    def reset(self) -> None:
        """Clears the wait: work has arrived, or is no longer requested."""
        self._reason = None
        self._retry_policy.waits.clear(WORK_WAIT)


class StageScheduler:
    """Holds each lease from its grant until all results under it are committed.

    An assignment is one asyncio task that contains its runs; a lost lease cancels it whole.
    """

    def __init__(
        self,
        *,
        key: StageKey,
        limits: RolloutLimits,
        buffer: ExplorerBufferClient,
        executor: RunExecutor,
        long_runs: LongRunReporter,
        gate: WeightGate,
        outbox: Outbox,
        counters: RolloutCounters,
        retry_policy: RetryPolicy,
        idle_timeout: IdleTimeout,
        steps: ExploreStepLog,
    ) -> None:
        self._key = key
        self._limits = limits
        self._buffer = buffer
        self._executor = executor
        self._long_runs = long_runs
        self._gate = gate
        self._outbox = outbox
        self._counters = counters
        self._retry_policy = retry_policy
        self._idle_timeout = idle_timeout
        self._steps = steps
        self._commit_deadline = CommitDeadline(outbox=outbox, retry_policy=retry_policy)
        self._leases = LeaseKeeper(
            key=key,
            lease_seconds=limits.lease_seconds,
            buffer=buffer,
            retry_policy=retry_policy,
            cuts_stragglers=limits.cuts_stragglers,
        )
        self._num_open_runs = 0
        self._changed = asyncio.Event()
        self._stopping = False

    async def run_stage(self) -> StageEnd:
        """Works until the stage is drained or cancelled, or until the last run after a stop.

        Raises: an ExceptionGroup with RolloutStageFailed when a wait exceeds its deadline.
        """
        background = (
            self._leases.renew_until_cancelled(),
            self._gate.load_when_needed(),
            self._commit_deadline.enforce_deadline(),
            self._long_runs.report_long_runs(),
        )
        async with asyncio.TaskGroup() as tasks:
            helpers = [tasks.create_task(helper) for helper in background]
            ending = await self._lease_loop(tasks)
            if isinstance(ending, StageDrained):
                await self._outbox.wait_empty()
            if isinstance(ending, ExplorerStopped):
                await self._wait_until(lambda: not self._num_open_runs)
            self._leases.cancel_all()
            for helper in helpers:
                helper.cancel()
        self._steps.end_all_but()
        return ending

    def stop_taking_work(self) -> None:
        """Stops taking work."""
        self._stopping = True
        self._changed.set()

    async def _lease_loop(self, tasks: asyncio.TaskGroup) -> StageEnd:
        try:
            while True:
                await self._wait_until(lambda: self._stopping or self._free_assignments() > 0)
                answer = ExplorerStopped() if self._stopping else await self._request_work_or_stop()
                match answer:
                    case WorkGranted(assignments):
                        self._steps.end_all_but(assignments)
                        self._idle_timeout.reset()
                        for assignment in assignments:
                            self._start_assignment(assignment, tasks)
                            await asyncio.sleep(0)  # results are sent while other runs begin
                    case NoWorkYet():
                        self._steps.end_all_but()
                        logger.debug("no work yet", extra={"reason": answer.reason})
                        self._idle_timeout.record_reason(answer, is_idle=not self._num_open_runs)
                    case ending:
                        return ending
        finally:
            self._idle_timeout.reset()

    def _free_assignments(self) -> int:
        """Returns the number of assignments that may be taken now."""
        free = self._limits.max_runs - self._num_open_runs
        return -(-free // self._limits.runs_per_assignment) if free > 0 else 0

    async def _request_work_or_stop(self) -> LeaseResponse | ExplorerStopped:
        """Returns the buffer's answer, or ExplorerStopped if taking work is stopped first."""
        asking = asyncio.ensure_future(self._request_work())
        stopped = asyncio.ensure_future(self._wait_until(lambda: self._stopping))
        try:
            await asyncio.wait((asking, stopped), return_when=asyncio.FIRST_COMPLETED)
            return asking.result() if asking.done() else ExplorerStopped()
        finally:
            asking.cancel()
            stopped.cancel()

    async def _request_work(self) -> LeaseResponse:
        await self._outbox.wait_fewer_than(self._limits.max_unconfirmed)
        return await self._retry_policy.retry(self._lease, waits_for="buffer", purpose="lease work")

    async def _lease(self) -> LeaseResponse:
        """Requests work; the buffer answers once there is some, or with the reason for waiting.

        Calls do not overlap: a grant that the next call does not name as held was lost in transit.
        """
        with self._idle_timeout.show_request():
            return await self._buffer.lease(
                self._key,
                self._free_assignments(),
                self._limits.lease_seconds,
                held=self._leases.assignments,
                requires_exact_version=self._limits.requires_exact_version,
                wait_seconds=self._idle_timeout.seconds_left,
            )

    def _start_assignment(self, assignment: Assignment, tasks: asyncio.TaskGroup) -> None:
        """Starts a task; a callback counts its end, as one cancelled early runs no `finally`."""
        open_runs = _OpenRunCounter(len(assignment.runs), self._count_open)
        work = tasks.create_task(self._execute_assignment(assignment, open_runs))
        self._steps.begin(assignment)
        work.add_done_callback(lambda _: open_runs.close_all())
        work.add_done_callback(lambda _: self._steps.end(assignment))
        self._leases.hold(assignment, work)

    async def _execute_assignment(
        self, assignment: Assignment, open_runs: "_OpenRunCounter"
    ) -> None:
        """Executes all runs, each until the buffer has reported on its results."""
        async with asyncio.TaskGroup() as runs:
            taken = [
                runs.create_task(self._executor.execute_runs(assignment, own, open_runs.run_ended))
                for own in self._executor.calls(assignment)
            ]
        if not all(run.result() for run in taken):
            await self._leases.return_assignment(assignment)

    def _count_open(self, change: int) -> None:
        self._num_open_runs += change
        self._counters.num_running = self._num_open_runs
        self._changed.set()

    async def _wait_until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._changed.clear()
            await self._changed.wait()


class _OpenRunCounter:
    """Counts the runs of one assignment that are not over into the total."""

    def __init__(self, num_runs: int, count: Callable[[int], None]) -> None:
        self._left = num_runs
        self._count = count
        count(num_runs)

    def run_ended(self) -> None:
        self._left -= 1
        self._count(-1)

    def close_all(self) -> None:
        self._count(-self._left)
        self._left = 0
