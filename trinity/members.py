"""Heartbeats to the synchronizer: that a process is alive, what it uses and what it waits for."""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Iterable
from types import TracebackType
from typing import Literal, Self

import grpc

from trinity.api.v1 import synchronizer_pb2 as pb
from trinity.api.v1.synchronizer_pb2_grpc import SynchronizerServiceStub
from trinity.waits import Waits

logger = logging.getLogger(__name__)

Role = Literal["explorer", "trainer", "buffer"]
_ROLES = {"explorer": pb.ROLE_EXPLORER, "trainer": pb.ROLE_TRAINER, "buffer": pb.ROLE_BUFFER}
_GONE = "gone"
_NONE = -1
"""The version of a member that has none."""
_CALL_SECONDS = 5.0
_GOODBYE_SECONDS = 1.0
_FIRST_INTERVAL_SECONDS = 2.0
_SHORTEST_INTERVAL_SECONDS = 0.5
"""Lower bound, however fast steps are: most of a synchronizer's load is heartbeats."""
_RETRY_SECONDS = 0.5


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
        self.waits = Waits(owner=role, on_change=self._changed)
        self._stub = stub
        self._lock = threading.Lock()
        self._member = pb.Member(
            id=member_id, role=_ROLES[role], address=address, activity="starting", version=_NONE
        )
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
        return copy

    def set_address(self, address: str) -> None:
        """Sets the address where this process serves, if it was not known at first."""
        self._change(address=address)

    def set_work(self, experiment_id: str, stage: str) -> None:
        """Sets the experiment and stage that this process works on; empty for none."""
        self._change(experiment_id=experiment_id, stage=stage)

    def set_activity(self, activity: str) -> None:
        """Sets a short description of what this process does."""
        self._change(activity=activity)

    def set_version(self, version: int) -> None:
        """Sets the version that is loaded or trained from."""
        self._change(version=version)

    def pin(self, versions: Iterable[int]) -> None:
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
            pause = self._interval_seconds if self._is_answered else _RETRY_SECONDS
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._wake.wait()

    async def _beat(self, timeout_seconds: float) -> None:
        request = pb.HeartbeatRequest(member=self.member)
        request.member.waits.extend(self.waits.to_proto())
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
