"""Those who talk to a running buffer: a trainer, and an explorer that makes up results."""

import contextlib
import uuid
from collections.abc import AsyncIterator

import nats

from tests.integration.buffer.explorer_side import ExplorerSide
from tests.integration.buffer.process import BufferProcess
from tests.integration.buffer.trainer_side import TrainerSide
from trinity.api.v1 import buffer_pb2_grpc
from trinity.runtime.rpc.channel import open_channel
from trinity.types import StageKey


class Buffer(ExplorerSide, TrainerSide):
    """Both sides, for one stage."""

    def another_explorer(self) -> "Buffer":
        return Buffer(
            stub=self.stub, broker=self.broker, key=self.key, incarnation=self.incarnation
        )


@contextlib.asynccontextmanager
async def talk_to(process: BufferProcess, stage: str = "rft") -> AsyncIterator[Buffer]:
    """A fresh experiment on a running buffer."""
    broker = await nats.connect(process.nats_url)
    try:
        async with open_channel(process.address) as channel:
            key = StageKey(tenant="default", experiment_id=str(uuid.uuid4()), stage=stage)
            stub: buffer_pb2_grpc.BufferServiceStub = buffer_pb2_grpc.BufferServiceStub(channel)
            yield Buffer(stub=stub, broker=broker, key=key)
    finally:
        await broker.close()
