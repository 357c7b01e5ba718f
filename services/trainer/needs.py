"""The conditions for the trainer to be ready, and those that are not met."""

import asyncio
from enum import StrEnum

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.trainer.jobs import RECONNECT_SECONDS, JobBoard
from trinity.rpc.health import Health
from trinity.waits import Waits

BUFFER_SERVICE = "trinity.api.v1.BufferService"


class Need(StrEnum):
    """A condition; the value is the message while it is not met."""

    SYNCHRONIZER = "the synchronizer does not answer"
    BUFFER = "the buffer does not answer"
    GANG = "a stage is wanted and there is no gang"


WAITS_FOR = {Need.SYNCHRONIZER: "synchronizer", Need.BUFFER: "buffer", Need.GANG: "ranks"}


class Needs:
    """Tracks unmet conditions; the trainer is ready while there are none.

    At first both peers are missing. An unmet condition is shown as a wait.
    """

    def __init__(self, waits: Waits | None = None) -> None:
        self._missing: set[Need] = set()
        self._changed = asyncio.Event()
        self._waits = waits
        for need in (Need.SYNCHRONIZER, Need.BUFFER):
            self.note(need, is_met=False)

    def note(self, need: Need, *, is_met: bool) -> None:
        """Records whether a condition is met."""
        before = set(self._missing)
        if is_met:
            self._missing.discard(need)
        else:
            self._missing.add(need)
        if self._missing != before:
            self._changed.set()
            self._show(need, is_met=is_met)

    def have(self, need: Need) -> None:
        """Records that a condition is met."""
        self.note(need, is_met=True)

    async def keep(self, health: Health) -> None:
        """Reports every change to the health service, until cancelled."""
        while True:
            self._changed.clear()
            await health.set_ready(not self._missing, "; ".join(sorted(self._missing)))
            await self._changed.wait()

    def _show(self, need: Need, *, is_met: bool) -> None:
        """Shows the condition as a wait; the ranks that need it have deadlines of their own."""
        if self._waits is None:
            return
        if is_met:
            self._waits.clear(need.name)
        else:
            self._waits.set(need.name, waits_for=WAITS_FOR[need], reason=need.value)

    async def follow_board(self, board: JobBoard) -> None:
        """Tracks whether the synchronizer answers, until cancelled."""
        while True:
            seen = board.num_news
            self.note(Need.SYNCHRONIZER, is_met=board.is_connected)
            await board.wait_for_news(seen)

    async def follow_buffer(self, channel: grpc.aio.Channel) -> None:
        """Tracks whether the buffer reports itself ready, until cancelled."""
        stub = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest(service=BUFFER_SERVICE)
        while True:
            try:
                async for answer in stub.Watch(request):
                    is_ready = answer.status == health_pb2.HealthCheckResponse.SERVING
                    self.note(Need.BUFFER, is_met=is_ready)
            except grpc.aio.AioRpcError:
                pass
            self.note(Need.BUFFER, is_met=False)
            await asyncio.sleep(RECONNECT_SECONDS)
