"""The state that the buffer reports: its readiness, and heartbeats to the synchronizer."""

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from services.buffer.ingest.ingest import Ingest
from services.buffer.ingest.stream import RunStream
from trinity.api.v1.synchronizer_pb2_grpc import SynchronizerServiceStub
from trinity.runtime.members import WaitKind
from trinity.runtime.presence import Heartbeats, WaitRegistry
from trinity.runtime.rpc.channel import open_channel
from trinity.runtime.rpc.health import Health

DATABASE = "database"
BROKER = "broker"
NO_BROKER = "the broker does not answer"


class BufferReadiness:
    """Sets readiness from database and broker, and shows a wait for each that is missing."""

    def __init__(
        self, *, health: Health, ingest: Ingest, stream: RunStream, waits: WaitRegistry
    ) -> None:
        self._health = health
        self._ingest = ingest
        self._stream = stream
        self._waits = waits

    async def wait_bound(self) -> None:
        """Waits until results are taken from the stream for the first time."""
        await self._ingest.bound.wait()

    async def set_ready(self, ready: bool, reason: str = "") -> None:
        """Updates readiness with the state of the database."""
        is_bound = self._ingest.bound.is_set() and self._stream.is_connected
        self._show(DATABASE, None if ready else reason)
        self._show(BROKER, None if is_bound else NO_BROKER)
        if ready and not is_bound:
            ready, reason = False, NO_BROKER
        await self._health.set_ready(ready, reason)

    def _show(self, name: str, reason: str | None) -> None:
        """Shows or clears a wait, without a deadline: the buffer never gives up, its callers do."""
        if reason is None:
            self._waits.clear(name)
        else:
            kind = WaitKind.NO_ANSWER
            self._waits.set(name, waits_for=name, reason=reason, kind=kind)


SERVING = "serving"


@dataclass(frozen=True, slots=True)
class SynchronizerHeartbeat:
    """The waits of this process; without a synchronizer they are not reported."""

    waits: WaitRegistry
    heartbeats: Heartbeats | None = None

    def set_address(self, address: str) -> None:
        """Reports the address at which this process serves."""
        if self.heartbeats is not None:
            self.heartbeats.set_address(address)
            self.heartbeats.set_activity(SERVING)


@asynccontextmanager
async def synchronizer_heartbeat(synchronizer: str) -> AsyncIterator[SynchronizerHeartbeat]:
    """Sends heartbeats while the block runs."""
    if not synchronizer:
        yield SynchronizerHeartbeat(WaitRegistry(owner="buffer", on_change=lambda: None))
        return
    async with open_channel(synchronizer) as channel:
        stub = SynchronizerServiceStub(channel)
        async with Heartbeats(stub, member_id=str(uuid.uuid4()), role="buffer") as heartbeats:
            yield SynchronizerHeartbeat(heartbeats.waits, heartbeats)
