"""The explorer's work on one stage: leases work, runs it, and awaits commits of its results."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from services.explorer.assignments import (
    Assignment,
    Drained,
    Ending,
    Granted,
    LeaseAnswer,
    Stopped,
    Waiting,
)
from services.explorer.buffer_client import BufferClient
from services.explorer.commit_patience import CommitPatience
from services.explorer.counts import Counts
from services.explorer.gate import WeightGate
from services.explorer.held import HeldLeases
from services.explorer.idleness import Idleness
from services.explorer.long_runs import LongRuns
from services.explorer.patience import Patience
from services.explorer.run_work import RunWork
from services.explorer.unconfirmed import Unconfirmed
from trinity.types import StageKey

logger = logging.getLogger(__name__)


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
