"""The leases that an explorer holds, and the work under each."""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial

from services.explorer.clients.buffer import BufferClient
from services.explorer.counters import Counts
from services.explorer.delivery.commits import CommitPatience
from services.explorer.delivery.outbox import Unconfirmed
from services.explorer.retry import Patience
from services.explorer.rollout.run import LongRuns, RunWork
from services.explorer.rollout.weight_gate import WeightGate
from services.explorer.types import (
    Assignment,
    Drained,
    Ending,
    Granted,
    LeaseAnswer,
    Stopped,
    Waiting,
)
from trinity.types import StageKey

logger = logging.getLogger(__name__)


RENEWALS_PER_LEASE = 3
SOON_SECONDS = 1.0


class HeldLeases:
    """Renews each assignment's lease while its work runs; cancels work whose lease is lost."""

    def __init__(
        self,
        *,
        key: StageKey,
        lease_seconds: float,
        buffer: BufferClient,
        patience: Patience,
        is_cut_short: bool = False,
    ) -> None:
        """Checks often for lost leases if `is_cut_short`: steps then do not wait for all tasks."""
        self._key = key
        usual = lease_seconds / RENEWALS_PER_LEASE
        self._renew_seconds = min(usual, SOON_SECONDS) if is_cut_short else usual
        self._lease_seconds = lease_seconds
        self._buffer = buffer
        self._patience = patience
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
        work.add_done_callback(lambda _: self._let_go(assignment, work))

    async def release(self, assignment: Assignment) -> None:
        """Returns work to the buffer, to be retried at once."""
        await self._patience.persist(
            partial(self._buffer.release, self._key, [assignment]),
            waits_for="buffer",
            purpose="give a lease back",
        )

    def cancel_all(self) -> None:
        """Cancels all work."""
        for _, work in self._held.values():
            work.cancel()

    async def renew(self) -> None:
        """Renews leases and cancels the work of those that are lost, until cancelled."""
        while True:
            await asyncio.sleep(self._renew_seconds)
            held = self.assignments
            if not held:
                continue
            lost = await self._patience.persist(
                partial(self._buffer.renew, self._key, held, self._lease_seconds),
                waits_for="buffer",
                purpose="renew leases",
            )
            for assignment in held:
                if assignment.id in lost:
                    self._lose(assignment)

    def _lose(self, assignment: Assignment) -> None:
        current = self._held.get(assignment.id)
        if current is not None and current[0] is assignment:
            logger.info("a lease is lost", extra={"assignment": assignment.id})
            current[1].cancel()

    def _let_go(self, assignment: Assignment, work: asyncio.Task[None]) -> None:
        if self._held.get(assignment.id) == (assignment, work):
            del self._held[assignment.id]


WAIT = "work"
SHOWN_AFTER_SECONDS = 1.0


class Idleness:
    """Tracks how long the buffer has given the same reason for having no work."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._reason: str | None = None
        self._since = 0.0

    @property
    def seconds_left(self) -> float:
        """Seconds for which the buffer's last reason may still stay the same."""
        if self._reason is None:
            return self._patience.seconds
        return max(self._patience.seconds - (time.monotonic() - self._since), 0.0)

    def asking(self) -> AbstractContextManager[None]:
        """Shows that work is being requested, until the buffer has given a reason."""
        if self._reason is not None:
            return nullcontext()
        return self._patience.waits.waiting_if_longer(
            SHOWN_AFTER_SECONDS,
            for_="buffer",
            reason="to lease work",
            deadline_seconds=self._patience.deadline_seconds,
        )

    def note(self, reason: str, *, is_idle: bool) -> None:
        """Records the buffer's newest reason; there is no deadline while this process has runs.

        Raises: StageFailed when nothing has changed for too long.
        """
        now = time.monotonic()
        if reason != self._reason or not is_idle:
            self.over()
            self._reason, self._since = reason, now
        if now - self._since >= self._patience.seconds:
            raise self._patience.lost("buffer", f"to have work: {reason}")
        self._patience.waits.set(
            WAIT,
            waits_for="buffer",
            reason=reason,
            deadline_seconds=self._patience.deadline_seconds if is_idle else 0.0,
        )

    def over(self) -> None:
        """Clears the wait: there is work, or none is requested any more."""
        self._reason = None
        self._patience.waits.clear(WAIT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Limits on the work in progress, and the weights it needs."""

    max_runs: int
    """Most runs that are leased and not yet over."""
    max_unconfirmed: int
    """Most results that are not committed yet."""
    runs_per_assignment: int
    lease_seconds: float
    trains_exactly: bool
    """True if a training run needs exactly the version that its lease names."""
    is_cut_short: bool = False
    """True if explore steps leave slow tasks behind."""


class StageWork:
    """Holds each lease from its grant until all results under it are committed.

    An assignment is one asyncio task that contains its runs; a lost lease cancels it whole.
    """

    def __init__(
        self,
        *,
        key: StageKey,
        bounds: Bounds,
        buffer: BufferClient,
        runs: RunWork,
        long_runs: LongRuns,
        gate: WeightGate,
        unconfirmed: Unconfirmed,
        counts: Counts,
        patience: Patience,
        idleness: Idleness,
    ) -> None:
        self._key = key
        self._bounds = bounds
        self._buffer = buffer
        self._runs = runs
        self._long_runs = long_runs
        self._gate = gate
        self._unconfirmed = unconfirmed
        self._counts = counts
        self._patience = patience
        self._idleness = idleness
        self._commits = CommitPatience(unconfirmed=unconfirmed, patience=patience)
        self._held = HeldLeases(
            key=key,
            lease_seconds=bounds.lease_seconds,
            buffer=buffer,
            patience=patience,
            is_cut_short=bounds.is_cut_short,
        )
        self._num_open_runs = 0
        self._changed = asyncio.Event()
        self._stopping = False

    async def run(self) -> Ending:
        """Works until the stage is drained or cancelled, or `stop` was called and runs are over.

        Raises: an ExceptionGroup with StageFailed when a wait exceeds its deadline.
        """
        background = (
            self._held.renew(),
            self._gate.run(),
            self._commits.run(),
            self._long_runs.run(),
        )
        async with asyncio.TaskGroup() as tasks:
            helpers = [tasks.create_task(helper) for helper in background]
            ending = await self._take(tasks)
            if isinstance(ending, Drained):
                await self._unconfirmed.wait_empty()
            if isinstance(ending, Stopped):
                await self._wait_until(lambda: not self._num_open_runs)
            self._held.cancel_all()
            for helper in helpers:
                helper.cancel()
        return ending

    def stop(self) -> None:
        """Stops taking work."""
        self._stopping = True
        self._changed.set()

    async def _take(self, tasks: asyncio.TaskGroup) -> Ending:
        try:
            while True:
                await self._wait_until(lambda: self._stopping or self._room() > 0)
                answer = Stopped() if self._stopping else await self._ask_or_stop()
                match answer:
                    case Granted(assignments):
                        self._idleness.over()
                        for assignment in assignments:
                            self._begin(assignment, tasks)
                            await asyncio.sleep(0)  # results are sent while other runs begin
                    case Waiting(reason):
                        self._idleness.note(reason, is_idle=not self._num_open_runs)
                    case ending:
                        return ending
        finally:
            self._idleness.over()

    def _room(self) -> int:
        """Returns the number of assignments that may be taken now."""
        free = self._bounds.max_runs - self._num_open_runs
        return -(-free // self._bounds.runs_per_assignment) if free > 0 else 0

    async def _ask_or_stop(self) -> LeaseAnswer | Stopped:
        """Returns the buffer's answer, or Stopped if `stop` is called first."""
        asking = asyncio.ensure_future(self._ask())
        stopped = asyncio.ensure_future(self._wait_until(lambda: self._stopping))
        try:
            await asyncio.wait((asking, stopped), return_when=asyncio.FIRST_COMPLETED)
            return asking.result() if asking.done() else Stopped()
        finally:
            asking.cancel()
            stopped.cancel()

    async def _ask(self) -> LeaseAnswer:
        await self._unconfirmed.wait_fewer_than(self._bounds.max_unconfirmed)
        return await self._patience.persist(self._lease, waits_for="buffer", purpose="lease work")

    async def _lease(self) -> LeaseAnswer:
        """Requests work; the buffer answers when there is some, or later why there is none.

        Calls do not overlap: a grant that the next call does not name as held was lost in transit.
        """
        with self._idleness.asking():
            return await self._buffer.lease(
                self._key,
                self._room(),
                self._bounds.lease_seconds,
                held=self._held.assignments,
                trains_exactly=self._bounds.trains_exactly,
                wait_seconds=self._idleness.seconds_left,
            )

    def _begin(self, assignment: Assignment, tasks: asyncio.TaskGroup) -> None:
        """Starts a task; a callback counts its end, as one cancelled early runs no `finally`."""
        open_runs = _OpenRuns(len(assignment.runs), self._count_open)
        work = tasks.create_task(self._work(assignment, open_runs))
        work.add_done_callback(lambda _: open_runs.all_over())
        self._held.hold(assignment, work)

    async def _work(self, assignment: Assignment, open_runs: "_OpenRuns") -> None:
        """Executes all runs, each until the buffer has reported on its results."""
        async with asyncio.TaskGroup() as runs:
            taken = [
                runs.create_task(self._runs.work(assignment, run, open_runs.one_over))
                for run in assignment.runs
            ]
        if not all(run.result() for run in taken):
            await self._held.release(assignment)

    def _count_open(self, change: int) -> None:
        self._num_open_runs += change
        self._counts.num_running = self._num_open_runs
        self._changed.set()

    async def _wait_until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._changed.clear()
            await self._changed.wait()


class _OpenRuns:
    """Counts the runs of one assignment that are not over into the total."""

    def __init__(self, num_runs: int, count: Callable[[int], None]) -> None:
        self._left = num_runs
        self._count = count
        count(num_runs)

    def one_over(self) -> None:
        self._left -= 1
        self._count(-1)

    def all_over(self) -> None:
        self._count(-self._left)
        self._left = 0
