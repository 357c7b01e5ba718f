"""Waits and heartbeats: the activity and waits of a process, reported to the synchronizer."""

import asyncio
import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Self

import grpc

from trinity.api.v1 import synchronizer_pb2 as pb
from trinity.api.v1.synchronizer_pb2_grpc import SynchronizerServiceStub
from trinity.runtime.loops import LoopKeeper
from trinity.runtime.members import MemberPhase, WaitKind
from trinity.runtime.telemetry.metrics import observe_waits

logger = logging.getLogger(__name__)


_SHORTEST_DEADLINE_SECONDS = 0.001
Role = Literal["explorer", "trainer", "buffer"]
_ROLES = {"explorer": pb.ROLE_EXPLORER, "trainer": pb.ROLE_TRAINER, "buffer": pb.ROLE_BUFFER}
MEMBER_PHASES = {
    MemberPhase.PREPARING: pb.MEMBER_PHASE_PREPARING,
    MemberPhase.WORKING: pb.MEMBER_PHASE_WORKING,
    MemberPhase.SERVING: pb.MEMBER_PHASE_SERVING,
    MemberPhase.GONE: pb.MEMBER_PHASE_GONE,
}
WAIT_KINDS = {
    WaitKind.STATE: pb.WAIT_KIND_STATE,
    WaitKind.NO_ANSWER: pb.WAIT_KIND_NO_ANSWER,
    WaitKind.COMMIT: pb.WAIT_KIND_COMMIT,
    WaitKind.REWARDS: pb.WAIT_KIND_REWARDS,
    WaitKind.TASKS: pb.WAIT_KIND_TASKS,
}
_NONE = -1
"""The version of a member without weights."""
MEMBER_TIMEOUT_SECONDS = 10.0
"""A member that is silent for longer counts as gone."""
_CALL_SECONDS = 5.0
_GOODBYE_SECONDS = 1.0
_FIRST_INTERVAL_SECONDS = 2.0
_SHORTEST_INTERVAL_SECONDS = 0.5
"""Lower bound, however fast steps are: most of a synchronizer's load is heartbeats."""
_RETRY_SECONDS = 0.5
MAX_REPORTED_WAITS = 100
"""Only the longest waits are reported."""
CLOSED_WAIT_SECONDS = 1.0
"""Waits that ended sooner are not told."""
MAX_CLOSED_WAITS = 100
"""Kept until a heartbeat with them is answered; the oldest is forgotten first."""
_MAX_CLOSED_REASON_LENGTH = 500


def wait_kind_from_proto(value: int) -> WaitKind:
    """Converts a kind of wait; a value that this version does not know is a state."""
    return next((kind for kind, number in WAIT_KINDS.items() if number == value), WaitKind.STATE)


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class ActiveWait:
    """An active wait; compared by identity, so equal texts may occur twice."""

    owner: str
    waits_for: str
    reason: str
    since: float
    """By `time.monotonic`."""
    deadline_seconds: float
    """Counted from `since`; 0 when it never times out."""
    kind: WaitKind = WaitKind.STATE
    experiment_id: str = ""
    """The only experiment that is held up; empty when it may be any."""

    @property
    def told(self) -> tuple[object, ...]:
        """Its contents, apart from the time."""
        return (self.waits_for, self.reason, self.deadline_seconds, self.kind, self.experiment_id)

    def to_proto(self, now: float) -> pb.Wait:
        """Describes the wait as of `now`."""
        waited = now - self.since
        left = max(self.deadline_seconds - waited, _SHORTEST_DEADLINE_SECONDS)
        return pb.Wait(
            owner=self.owner,
            waits_for=self.waits_for,
            reason=self.reason,
            waited_seconds=waited,
            deadline_seconds=left if self.deadline_seconds > 0 else 0.0,
            kind=WAIT_KINDS[self.kind],
            experiment_id=self.experiment_id,
        )

    def to_closed_proto(self, now: float, ended: float, number: int) -> pb.ClosedWait:
        """Describes the wait after its end."""
        return pb.ClosedWait(
            number=number,
            owner=self.owner,
            waits_for=self.waits_for,
            reason=self.reason[:_MAX_CLOSED_REASON_LENGTH],
            waited_seconds=ended - self.since,
            ended_seconds_ago=now - ended,
        )


@dataclass(frozen=True, slots=True)
class _EndedWait:
    number: int
    wait: ActiveWait
    ended: float
    """By `time.monotonic`."""
    work: tuple[str, str]
    """The experiment and the stage of the process at its end."""


class WaitRegistry:
    """The active waits of this process; usable from coroutines and threads alike.

    Registering a wait does not limit it: the waiter keeps its own deadline.

        with waits.waiting(for_="synchronizer", reason="version 4 is not published yet"):
            await gate.wait()

        waits.set("lease", waits_for="buffer", reason=str(error))  # repeatedly, until
        waits.clear("lease")
    """

    def __init__(self, *, owner: str, on_change: Callable[[], None]) -> None:
        self._owner = owner
        self._on_change = on_change
        self._lock = threading.Lock()
        self._open: list[ActiveWait] = []
        self._named: dict[str, ActiveWait] = {}
        self._work = ("", "")
        self._closed: deque[_EndedWait] = deque(maxlen=MAX_CLOSED_WAITS)
        self._num_closed = 0
        observe_waits(self.to_proto)

    def begin(
        self, *, for_: str, reason: str, deadline_seconds: float = 0.0, owner: str = ""
    ) -> ActiveWait:
        """Starts a wait where a `with` block does not fit; `end` ends it."""
        wait = ActiveWait(
            owner=owner or self._owner,
            waits_for=for_,
            reason=reason,
            since=time.monotonic(),
            deadline_seconds=deadline_seconds,
        )
        self._show(wait)
        return wait

    def end(self, wait: ActiveWait) -> None:
        """Ends a wait; further calls do nothing."""
        with self._lock:
            if wait not in self._open:
                return
            self._open.remove(wait)
            self._close(wait)
        self._on_change()

    @contextlib.contextmanager
    def waiting(
        self, *, for_: str, reason: str, deadline_seconds: float = 0.0, owner: str = ""
    ) -> Iterator[None]:
        """Shows a wait while the block runs."""
        wait = self.begin(for_=for_, reason=reason, deadline_seconds=deadline_seconds, owner=owner)
        try:
            yield
        finally:
            self.end(wait)

    @contextlib.contextmanager
    def waiting_if_longer(
        self,
        seconds: float,
        *,
        for_: str,
        reason: str,
        deadline_seconds: float = 0.0,
        kind: WaitKind = WaitKind.STATE,
    ) -> Iterator[None]:
        """Shows a wait, from its start, once the block exceeds `seconds`; on an event loop."""
        wait = ActiveWait(
            owner=self._owner,
            waits_for=for_,
            reason=reason,
            since=time.monotonic(),
            deadline_seconds=deadline_seconds,
            kind=kind,
        )
        timer = asyncio.get_running_loop().call_later(seconds, self._show, wait)
        try:
            yield
        finally:
            timer.cancel()
            self.end(wait)

    def set(
        self,
        name: str,
        *,
        waits_for: str,
        reason: str,
        deadline_seconds: float = 0.0,
        waited_seconds: float = 0.0,
        kind: WaitKind = WaitKind.STATE,
        experiment_id: str = "",
    ) -> None:
        """Starts or updates the wait of this name.

        It began when the name was first set, or `waited_seconds` before that.
        """
        with self._lock:
            before = self._named.get(name)
            wait = ActiveWait(
                owner=self._owner,
                waits_for=waits_for,
                reason=reason,
                since=before.since if before else time.monotonic() - waited_seconds,
                deadline_seconds=deadline_seconds,
                kind=kind,
                experiment_id=experiment_id,
            )
            if before is not None and before.told == wait.told:
                return
            self._named[name] = wait
        self._on_change()

    def clear(self, name: str, *, told_from: float | None = None) -> None:
        """Ends the wait of this name, if it is active; one of fewer seconds is then forgotten."""
        with self._lock:
            ended = self._named.pop(name, None)
            if ended is not None:
                self._close(ended, told_from)
        if ended is not None:
            self._on_change()

    def to_proto(self) -> list[pb.Wait]:
        """Describes every wait, the longest first."""
        with self._lock:
            now = time.monotonic()  # under the lock, so that no wait began after it
            waits = [*self._open, *self._named.values()]
        return [wait.to_proto(now) for wait in sorted(waits, key=lambda wait: wait.since)]

    def set_work(self, experiment_id: str, stage: str) -> None:
        """Sets the experiment and stage of waits that end from now on; both may be empty."""
        with self._lock:
            self._work = (experiment_id, stage)

    def closed_to_proto(self) -> list[pb.ClosedWait]:
        """Describes the waits that have ended and are not forgotten yet, the oldest first."""
        with self._lock:
            now = time.monotonic()  # under the lock, so that no wait ended after it
            ended = tuple(self._closed)
        told = [closed.wait.to_closed_proto(now, closed.ended, closed.number) for closed in ended]
        for message, closed in zip(told, ended, strict=True):
            message.experiment_id, message.stage = closed.work
        return told

    def forget_closed(self, last_number: int) -> None:
        """Forgets the closed waits up to this number: they were reported."""
        with self._lock:
            while self._closed and self._closed[0].number <= last_number:
                self._closed.popleft()

    def _close(self, wait: ActiveWait, told_from: float | None = None) -> None:
        """Keeps a wait that has ended, if it was long; requires the lock."""
        now = time.monotonic()
        if now - wait.since >= (CLOSED_WAIT_SECONDS if told_from is None else told_from):
            self._num_closed += 1
            self._closed.append(_EndedWait(self._num_closed, wait, now, self._work))

    def _show(self, wait: ActiveWait) -> None:
        with self._lock:
            self._open.append(wait)
        self._on_change()


class Heartbeats:
    """Reports this process to the synchronizer: at intervals, soon after a change, and at the end.

    A report that gets no answer is sent again later. The setters may be called from threads.

        async with Heartbeats(stub, member_id=id, role="explorer", address=server.address) as beats:
            beats.set_work(experiment_id, "rft")
            beats.set_activity("rolling out")
            with beats.waits.waiting(for_="buffer", reason="nothing to lease"):
                ...
    """

    def __init__(
        self, stub: SynchronizerServiceStub, *, member_id: str, role: Role, address: str = ""
    ) -> None:
        self.waits = WaitRegistry(owner=role, on_change=self._changed)
        self._stub = stub
        self._lock = threading.Lock()
        self._member = pb.Member(
            id=member_id,
            role=_ROLES[role],
            address=address,
            activity="starting",
            version=_NONE,
            phase=MEMBER_PHASES[MemberPhase.WORKING],
        )
        self._note = ""
        self._interval_seconds = _FIRST_INTERVAL_SECONDS
        self._is_answered = True
        self._wake = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks = asyncio.TaskGroup()

    @property
    def member(self) -> pb.Member:
        """The reported state, without the waits."""
        copy = pb.Member()
        with self._lock:
            copy.CopyFrom(self._member)
            if self._note:
                copy.activity += f"; {self._note}"
        return copy

    def set_address(self, address: str) -> None:
        """Sets the address where this process serves, if it was not known at first."""
        self._change(address=address)

    def set_work(self, experiment_id: str, stage: str) -> None:
        """Sets the experiment and stage that this process works on; both may be empty."""
        self.waits.set_work(experiment_id, stage)
        self._change(experiment_id=experiment_id, stage=stage)

    def set_activity(self, activity: str, phase: MemberPhase = MemberPhase.WORKING) -> None:
        """Sets a short description of this process' activity, and its phase."""
        self._change(activity=activity, phase=MEMBER_PHASES[phase])

    def set_note(self, note: str) -> None:
        """Sets a note that is shown after the activity; may be empty."""
        with self._lock:
            if self._note == note:
                return
            self._note = note
        self._changed()

    def set_version(self, version: int) -> None:
        """Sets the version that is loaded or trained from."""
        self._change(version=version)

    def set_pinned_versions(self, versions: Iterable[int]) -> None:
        """Sets the versions whose files are needed from now on; replaces those set before."""
        pinned = sorted(set(versions))
        with self._lock:
            if list(self._member.pinned_versions) == pinned:
                return
            self._member.pinned_versions[:] = pinned
        self._changed()

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        await self._tasks.__aenter__()
        beating = LoopKeeper(waits=self.waits).keep_running("heartbeats", self._run)
        self._task = self._tasks.create_task(beating, name="heartbeats")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._task.cancel()
        await self._tasks.__aexit__(kind, error, traceback)
        self.set_note("")
        self.set_activity("gone", MemberPhase.GONE)
        await self._beat(_GOODBYE_SECONDS)

    def _change(self, **fields: str | int) -> None:
        with self._lock:
            if all(getattr(self._member, name) == value for name, value in fields.items()):
                return
            for name, value in fields.items():
                setattr(self._member, name, value)
        self._changed()

    def _changed(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake.set)

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            await self._beat(_CALL_SECONDS)
            await asyncio.sleep(_SHORTEST_INTERVAL_SECONDS)
            pause = self._interval_seconds if self._is_answered else _RETRY_SECONDS
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._wake.wait()

    async def _beat(self, timeout_seconds: float) -> None:
        request = pb.HeartbeatRequest(member=self.member)
        request.member.waits.extend(self.waits.to_proto()[:MAX_REPORTED_WAITS])
        request.closed_waits.extend(self.waits.closed_to_proto())
        try:
            answer = await self._stub.Heartbeat(request, timeout=timeout_seconds)
        except grpc.aio.AioRpcError as error:
            if self._is_answered:
                extra = {"code": error.code().name, "reason": error.details()}
                logger.warning("heartbeat rejected by the synchronizer", extra=extra)
            self._is_answered = False
        else:
            self._is_answered = True
            self._interval_seconds = answer.interval_seconds
            if request.closed_waits:
                self.waits.forget_closed(request.closed_waits[-1].number)
