"""The explorer's part of one stage: takes work, runs it, sees its results committed."""

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
    """How much is taken on at a time, and with which weights."""

    max_runs: int
    """Runs leased and not yet over."""
    max_unconfirmed: int
    """Results that are not committed yet."""
    runs_per_assignment: int
    lease_seconds: float
    trains_exactly: bool
    """Whether a training run needs the very version that its lease names."""
    is_cut_short: bool = False
    """Whether explore steps leave slow tasks behind."""


class StageWork:
    """Holds leases from the grant until every result of theirs is committed.

    An assignment is one task: its runs go on inside it, and a lost lease cancels it whole.
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
        """Work until the stage is drained or cancelled, or `stop` was called and runs are over.

        Raises: a group with StageFailed when something is waited for in vain.
        """
        helping = (
            self._held.renew(),
            self._gate.run(),
            self._commits.run(),
            self._long_runs.run(),
        )
        async with asyncio.TaskGroup() as tasks:
            helpers = [tasks.create_task(helper) for helper in helping]
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
        """Take no more work."""
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
                            await asyncio.sleep(0)  # results leave while others begin
                    case Waiting(reason):
                        self._idleness.note(reason, is_idle=not self._num_open_runs)
                    case ending:
                        return ending
        finally:
            self._idleness.over()

    def _room(self) -> int:
        """Assignments that may be taken now."""
        free = self._bounds.max_runs - self._num_open_runs
        return -(-free // self._bounds.runs_per_assignment) if free > 0 else 0

    async def _ask_or_stop(self) -> LeaseAnswer | Stopped:
        """The buffer's answer, unless `stop` is called meanwhile."""
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
        """The buffer answers when there is work, or after a while why there is none.

        One call at a time: what it grants and this does not name as held was lost on the way.
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
        """A task that is cancelled before its first step runs no `finally`: the callback counts."""
        open_runs = _OpenRuns(len(assignment.runs), self._count_open)
        work = tasks.create_task(self._work(assignment, open_runs))
        work.add_done_callback(lambda _: open_runs.all_over())
        self._held.hold(assignment, work)

    async def _work(self, assignment: Assignment, open_runs: "_OpenRuns") -> None:
        """All runs, each until it is over and the buffer has reported on its results."""
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
    """Runs of one assignment that are not over, counted among all."""

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
