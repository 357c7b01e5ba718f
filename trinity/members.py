"""How a process tells the synchronizer that it lives, what it uses and what it waits for."""

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Self

import grpc

from trinity.api.v1 import synchronizer_pb2 as pb
from trinity.api.v1.synchronizer_pb2_grpc import SynchronizerServiceStub

logger = logging.getLogger(__name__)

Role = Literal["explorer", "trainer", "buffer"]
_ROLES = {"explorer": pb.ROLE_EXPLORER, "trainer": pb.ROLE_TRAINER, "buffer": pb.ROLE_BUFFER}
_GONE = "gone"
_CALL_SECONDS = 5.0
_GOODBYE_SECONDS = 1.0
_FIRST_INTERVAL_SECONDS = 2.0
_SHORTEST_INTERVAL_SECONDS = 0.2
_SHORTEST_DEADLINE_SECONDS = 0.001


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Waiting:
    """One wait that goes on; two of the same text are two."""

    owner: str
    waits_for: str
    reason: str
    since: float
    """By `time.monotonic`."""
    deadline_seconds: float
    """From `since`; 0 when it never gives up."""

    def to_proto(self, now: float) -> pb.Wait:
        """Describe the wait as of `now`."""
        waited = now - self.since
        left = max(self.deadline_seconds - waited, _SHORTEST_DEADLINE_SECONDS)
        return pb.Wait(
            owner=self.owner,
            waits_for=self.waits_for,
            reason=self.reason,
            waited_seconds=waited,
            deadline_seconds=left if self.deadline_seconds > 0 else 0.0,
        )


class Waits:
    """What this process waits for; usable from coroutines and threads alike.

    Registering a wait bounds nothing: whoever waits keeps its own deadline.

        with waits.waiting(for_="synchronizer", reason="version 4 is not published yet"):
            await gate.wait()
    """

    def __init__(self, *, owner: str, on_change: Callable[[], None]) -> None:
        self._owner = owner
        self._on_change = on_change
        self._lock = threading.Lock()
        self._open: list[Waiting] = []

    def begin(
        self, *, for_: str, reason: str, deadline_seconds: float = 0.0, owner: str = ""
    ) -> Waiting:
        """Say that a wait has begun, where a block does not fit; `end` ends it."""
        wait = Waiting(
            owner=owner or self._owner,
            waits_for=for_,
            reason=reason,
            since=time.monotonic(),
            deadline_seconds=deadline_seconds,
        )
        with self._lock:
            self._open.append(wait)
        self._on_change()
        return wait

    def end(self, wait: Waiting) -> None:
        """Say that a wait is over; once is enough."""
        with self._lock, contextlib.suppress(ValueError):
            self._open.remove(wait)
        self._on_change()

    @contextlib.contextmanager
    def waiting(
        self, *, for_: str, reason: str, deadline_seconds: float = 0.0, owner: str = ""
    ) -> Iterator[None]:
        """Show a wait for as long as the block lasts."""
        wait = self.begin(for_=for_, reason=reason, deadline_seconds=deadline_seconds, owner=owner)
        try:
            yield
        finally:
            self.end(wait)

    def to_proto(self) -> list[pb.Wait]:
        """Describe every wait, the longest first."""
        now = time.monotonic()
        with self._lock:
            return [wait.to_proto(now) for wait in self._open]


class Heartbeats:
    """Tells the synchronizer about this process: at intervals, soon after a change, and at the end.

    A synchronizer that does not answer is told again later. The setters may be called from threads.

        async with Heartbeats(stub, member_id=id, role="explorer", address=server.address) as beats:
            beats.set_work(experiment_id, "rft")
            beats.set_activity("rolling out")
            with beats.waits.waiting(for_="buffer", reason="nothing to lease"):
                ...
    """

    def __init__(
        self, stub: SynchronizerServiceStub, *, member_id: str, role: Role, address: str
    ) -> None:
        self.waits = Waits(owner=role, on_change=self._changed)
        self._stub = stub
        self._lock = threading.Lock()
        self._member = pb.Member(
            id=member_id, role=_ROLES[role], address=address, activity="starting"
        )
        self._interval_seconds = _FIRST_INTERVAL_SECONDS
        self._is_answered = True
        self._wake = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks = asyncio.TaskGroup()

    def set_work(self, experiment_id: str, stage: str) -> None:
        """Say which stage of which experiment this process works on; empty when on none."""
        self._change(experiment_id=experiment_id, stage=stage)

    def set_activity(self, activity: str) -> None:
        """Say in a few words what this process does."""
        self._change(activity=activity)

    def set_version(self, version: int) -> None:
        """Say which version is loaded or trained from."""
        self._change(version=version)

    def pin(self, versions: Iterable[int]) -> None:
        """Say which versions' files are needed from now on, in place of those said before."""
        pinned = sorted(set(versions))
        with self._lock:
            if list(self._member.pinned_versions) == pinned:
                return
            self._member.pinned_versions[:] = pinned
        self._changed()

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        await self._tasks.__aenter__()
        self._task = self._tasks.create_task(self._run(), name="heartbeats")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._task.cancel()
        await self._tasks.__aexit__(kind, error, traceback)
        self._change(activity=_GONE)
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
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), self._interval_seconds)

    async def _beat(self, timeout_seconds: float) -> None:
        request = pb.HeartbeatRequest()
        with self._lock:
            request.member.CopyFrom(self._member)
        request.member.waits.extend(self.waits.to_proto())
        try:
            answer = await self._stub.Heartbeat(request, timeout=timeout_seconds)
        except grpc.aio.AioRpcError as error:
            if self._is_answered:
                extra = {"code": error.code().name, "reason": error.details()}
                logger.warning("the synchronizer takes no heartbeat", extra=extra)
            self._is_answered = False
        else:
            self._is_answered = True
            self._interval_seconds = answer.interval_seconds
