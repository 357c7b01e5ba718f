"""Heartbeats of the buffer to the synchronizer, with what it waits for."""

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from trinity.api.v1.synchronizer_pb2_grpc import SynchronizerServiceStub
from trinity.members import Heartbeats
from trinity.rpc.channel import open_channel
from trinity.waits import Waits

SERVING = "serving"


@dataclass(frozen=True, slots=True)
class Membership:
    """The waits of this process; without a synchronizer they are not reported."""

    waits: Waits
    heartbeats: Heartbeats | None = None

    def serves(self, address: str) -> None:
        """Reports the address at which this process serves."""
        if self.heartbeats is not None:
            self.heartbeats.set_address(address)
            self.heartbeats.set_activity(SERVING)


@asynccontextmanager
async def membership(synchronizer: str) -> AsyncIterator[Membership]:
    """Sends heartbeats while the block runs."""
    if not synchronizer:
        yield Membership(Waits(owner="buffer", on_change=lambda: None))
        return
    async with open_channel(synchronizer) as channel:
        stub = SynchronizerServiceStub(channel)
        async with Heartbeats(stub, member_id=str(uuid.uuid4()), role="buffer") as heartbeats:
            yield Membership(heartbeats.waits, heartbeats)
