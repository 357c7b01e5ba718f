"""The explorer's part of one stage: takes work, runs it, sees its results committed."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from services.explorer.assignments import Assignment, Cancelled, Drained, Granted, Waiting
from services.explorer.buffer_client import BufferClient
from services.explorer.gate import WeightGate
from services.explorer.held import HeldLeases
from services.explorer.outcome import Attempt, Outcome, outcome_to_proto
from services.explorer.retry import persist
from services.explorer.runner import Runner
from services.explorer.status import Status
from services.explorer.unconfirmed import Unconfirmed
from trinity.api.v1.experience_pb2 import RunResult
from trinity.types import StageKey

logger = logging.getLogger(__name__)


WORK = "work"


class Ending(StrEnum):
    """Why there is nothing more to do in a stage."""

    DRAINED = "drained"
    CANCELLED = "cancelled"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How much is taken on at a time."""

    max_runs: int
    """Runs leased and not yet over."""
    max_unconfirmed: int
    """Results that are not committed yet."""
    runs_per_assignment: int
    max_attempts: int
    lease_seconds: float


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
        runner: Runner,
        gate: WeightGate,
        unconfirmed: Unconfirmed,
        status: Status,
    ) -> None:
        self._key = key
        self._bounds = bounds
        self._buffer = buffer
        self._runner = runner
        self._gate = gate
        self._unconfirmed = unconfirmed
        self._status = status
        self._held = HeldLeases(
            key=key, lease_seconds=bounds.lease_seconds, buffer=buffer, status=status
        )
        self._num_open_runs = 0
        self._changed = asyncio.Event()
        self._stopping = False

    async def run(self) -> Ending:
        """Work until the stage is drained or cancelled, or `stop` was called and runs are over."""
        async with asyncio.TaskGroup() as tasks:
            helpers = [tasks.create_task(self._held.renew()), tasks.create_task(self._gate.run())]
            ending = await self._take(tasks)
            if ending is Ending.DRAINED:
                await self._wait_committed()
            if ending is Ending.STOPPED:
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
                answer = None if self._stopping else await self._lease()
                match answer:
                    case Granted(assignments):
                        self._status.stop_waiting(WORK)
                        for assignment in assignments:
                            self._begin(assignment, tasks)
                    case Waiting(reason):
                        self._status.wait_for(WORK, "buffer", reason)
                    case Drained():
                        return Ending.DRAINED
                    case Cancelled(reason):
                        logger.warning("the stage was cancelled", extra={"reason": reason})
                        return Ending.CANCELLED
                    case None:
                        return Ending.STOPPED
        finally:
            self._status.stop_waiting(WORK)

    def _room(self) -> int:
        """Assignments that may be taken now."""
        if len(self._unconfirmed) >= self._bounds.max_unconfirmed:
            return 0
        free = self._bounds.max_runs - self._num_open_runs
        return -(-free // self._bounds.runs_per_assignment) if free > 0 else 0

    async def _lease(self) -> Granted | Waiting | Drained | Cancelled | None:
        """The buffer's answer; None when `stop` was called meanwhile."""
        leasing = asyncio.ensure_future(
            persist(
                lambda: self._buffer.lease(self._key, self._room(), self._bounds.lease_seconds),
                status=self._status,
                waits_for="buffer",
                purpose="lease work",
            )
        )
        stopped = asyncio.ensure_future(self._wait_until(lambda: self._stopping))
        try:
            await asyncio.wait((leasing, stopped), return_when=asyncio.FIRST_COMPLETED)
            return leasing.result() if leasing.done() else None
        finally:
            leasing.cancel()
            stopped.cancel()

    def _begin(self, assignment: Assignment, tasks: asyncio.TaskGroup) -> None:
        """A task that is cancelled before its first step runs no `finally`: the callback counts."""
        open_runs = _OpenRuns(len(assignment.runs))
        self._count_open(open_runs.left)
        work = tasks.create_task(self._work(assignment, open_runs))
        work.add_done_callback(lambda _: self._count_open(-open_runs.left))
        self._held.hold(assignment, work)

    async def _work(self, assignment: Assignment, open_runs: "_OpenRuns") -> None:
        """All runs, each until it is over and its results are committed."""
        async with asyncio.TaskGroup() as runs:
            for run in assignment.runs:
                runs.create_task(self._run(assignment, run, open_runs))

    def _count_open(self, change: int) -> None:
        self._num_open_runs += change
        self._status.num_running = self._num_open_runs
        self._changed.set()

    async def _run(self, assignment: Assignment, run: int, open_runs: "_OpenRuns") -> None:
        fates = []
        for number in range(
            assignment.first_attempt, assignment.first_attempt + self._bounds.max_attempts
        ):
            attempt = Attempt(key=self._key, assignment=assignment, run=run, number=number)
            async with self._gate.hold(assignment.required) as weights:
                outcome = await self._runner.run(attempt, weights)
            self._count_tokens(outcome)
            message = _message(outcome)
            fates.append(self._unconfirmed.add(message))
            if message.state == RunResult.STATE_COMPLETE:
                break
        open_runs.left -= 1
        self._count_open(-1)
        for fate in fates:
            await fate
        self._changed.set()

    def _count_tokens(self, outcome: Outcome) -> None:
        for experience in outcome.experiences:
            self._status.num_generated_tokens += sum(
                span.end - span.start for span in experience.version_spans
            )

    async def _wait_committed(self) -> None:
        reason = "results to be committed"
        with self._status.waiting("commits", "buffer", reason):
            await self._unconfirmed.wait_empty()

    async def _wait_until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._changed.clear()
            await self._changed.wait()


@dataclass(slots=True)
class _OpenRuns:
    left: int
    """Runs of one assignment that are not over."""


def _message(outcome: Outcome) -> RunResult:
    """What cannot be written down is a failure of the workflow that made it."""
    try:
        return outcome_to_proto(outcome)
    except (TypeError, ValueError) as error:
        failure = f"its experiences cannot be sent: {error}"
        return outcome_to_proto(Outcome(attempt=outcome.attempt, failure=failure))
