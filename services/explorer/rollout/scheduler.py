"""Leases the work of a stage, and keeps each lease until all results under it are committed."""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial

from services.explorer.clients.buffer import ExplorerBufferClient
from services.explorer.delivery.outbox import CommitDeadline, Outbox
from services.explorer.retry import RetryPolicy
from services.explorer.rollout.run import LongRunReporter, RunExecutor
from services.explorer.rollout.weight_gate import WeightGate
from services.explorer.telemetry import ExploreStepLog, RolloutCounters
from services.explorer.types import (
    Assignment,
    ExplorerStopped,
    LeaseResponse,
    NoWorkYet,
    StageDrained,
    StageEnd,
    WorkGranted,
)
from trinity.types import StageKey

logger = logging.getLogger(__name__)


RENEWALS_PER_LEASE = 3
FAST_RENEW_SECONDS = 1.0
WAIT = "work"
SHOWN_AFTER_SECONDS = 1.0


class LeaseKeeper:
    """Renews each assignment's lease while its work runs; cancels work whose lease is lost."""

    def __init__(
        self,
        *,
        key: StageKey,
        lease_seconds: float,
        buffer: ExplorerBufferClient,
        retry_policy: RetryPolicy,
        cuts_stragglers: bool = False,
    ) -> None:
        """Renews often with `cuts_stragglers`: steps then do not wait for all tasks."""
        self._key = key
        usual = lease_seconds / RENEWALS_PER_LEASE
        self._renew_seconds = min(usual, FAST_RENEW_SECONDS) if cuts_stragglers else usual
        self._lease_seconds = lease_seconds
        self._buffer = buffer
        self._retry_policy = retry_policy
        self._held: dict[str, tuple[Assignment, asyncio.Task[None]]] = {}

    @property
    def assignments(self) -> list[Assignment]:
        """The assignments whose leases are held."""
        return [assignment for assignment, _ in self._held.values()]

    def hold(self, assignment: Assignment, work: asyncio.Task[None]) -> None:
        """Keeps the lease until `work` is done.

        The same assignment again means that its lease had expired: its old work is cancelled.
        """
        if before := self._held.get(assignment.id):
            before[1].cancel()
        self._held[assignment.id] = (assignment, work)
        work.add_done_callback(lambda _: self._forget(assignment, work))

    async def return_assignment(self, assignment: Assignment) -> None:
        """Returns work to the buffer, to be retried at once."""
        await self._retry_policy.retry(
            partial(self._buffer.release_leases, self._key, [assignment]),
            waits_for="buffer",
            purpose="give a lease back",
        )

    def cancel_all(self) -> None:
        """Cancels all work."""
        for _, work in self._held.values():
            work.cancel()

    async def renew_until_cancelled(self) -> None:
        """Renews leases and cancels the work of those that are lost, until cancelled."""
        while True:
            await asyncio.sleep(self._renew_seconds)
            held = self.assignments
            if not held:
                continue
            lost = await self._retry_policy.retry(
                partial(self._buffer.renew_leases, self._key, held, self._lease_seconds),
                waits_for="buffer",
                purpose="renew leases",
            )
            for assignment in held:
                if assignment.id in lost:
                    self._cancel_lost(assignment)

    def _cancel_lost(self, assignment: Assignment) -> None:
        current = self._held.get(assignment.id)
        if current is not None and current[0] is assignment:
            logger.info(
                "a lease ended: its results are stored, or other workers have it",
                extra={"assignment": assignment.id},
            )
            current[1].cancel()

    def _forget(self, assignment: Assignment, work: asyncio.Task[None]) -> None:
        if self._held.get(assignment.id) == (assignment, work):
            del self._held[assignment.id]


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

    def show_request(self) -> AbstractContextManager[None]:
        """Shows that work is being requested, until the buffer has given a reason."""
        if self._reason is not None:
            return nullcontext()
        return self._retry_policy.waits.waiting_if_longer(
            SHOWN_AFTER_SECONDS,
            for_="buffer",
            reason="to lease work",
            deadline_seconds=self._retry_policy.deadline_seconds,
        )

    def record_reason(self, reason: str, *, is_idle: bool) -> None:
        """Records the buffer's newest reason; there is no deadline while this process has runs.

        Raises: RolloutStageFailed when nothing has changed for too long.
        """
        now = time.monotonic()
        if reason != self._reason or not is_idle:
            self.reset()
            self._reason, self._since = reason, now
        if now - self._since >= self._retry_policy.seconds:
            raise self._retry_policy.deadline_error("buffer", f"to have work: {reason}")
        self._retry_policy.waits.set(
            WAIT,
            waits_for="buffer",
            reason=reason,
            deadline_seconds=self._retry_policy.deadline_seconds if is_idle else 0.0,
        )

    def reset(self) -> None:
        """Clears the wait: there is work, or none is requested any more."""
        self._reason = None
        self._retry_policy.waits.clear(WAIT)


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
                    case NoWorkYet(reason):
                        self._steps.end_all_but()
                        logger.debug("no work yet", extra={"reason": reason})
                        self._idle_timeout.record_reason(reason, is_idle=not self._num_open_runs)
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
        """Requests work; the buffer answers when there is some, or later why there is none.

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
