"""An upload that breaks is sent again, until a deadline."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import grpc
import pytest

from trinity.api.v1 import buffer_pb2 as pb
from trinity.api.v1 import buffer_pb2_grpc
from trinity.client import AsyncTasksets, async_tasksets
from trinity.errors import Unavailable

PATIENCE_SECONDS = 0.3
ROWS = [{"prompt": str(number)} for number in range(5)]


@dataclass
class Breaking(buffer_pb2_grpc.BufferServiceServicer):
    """Takes rows for some seconds and then breaks off, as often as it is told to."""

    num_breaks: int = 1
    seconds: float = 0.5
    num_asked: int = 0
    never: asyncio.Event = field(default_factory=asyncio.Event)

    async def SubmitTaskset(
        self,
        requests: AsyncIterator[pb.SubmitTasksetRequest],
        context: "grpc.aio.ServicerContext[pb.SubmitTasksetRequest, pb.SubmitTasksetResponse]",
    ) -> pb.SubmitTasksetResponse:
        self.num_asked += 1
        if self.num_asked <= self.num_breaks:
            await asyncio.sleep(self.seconds)
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the buffer is stopping")
        if self.num_breaks < 0:
            await self.never.wait()
        num_stored = sum([len(one.rows.json) async for one in requests])
        return pb.SubmitTasksetResponse(num_stored=num_stored)


@contextlib.asynccontextmanager
async def client_of(servicer: Breaking) -> AsyncIterator[AsyncTasksets]:
    server = grpc.aio.server()
    buffer_pb2_grpc.add_BufferServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    address = f"127.0.0.1:{port}"
    async with AsyncTasksets(address, patience_seconds=PATIENCE_SECONDS) as tasksets:
        yield tasksets
    servicer.never.set()
    await server.stop(None)


async def test_an_upload_that_breaks_late_is_sent_again() -> None:
    async with client_of(Breaking()) as tasksets:
        assert (await tasksets.submit("sums", ROWS)).num_stored == 5


async def test_an_upload_that_always_breaks_is_given_up() -> None:
    servicer = Breaking(num_breaks=100, seconds=0.0)
    async with client_of(servicer) as tasksets:
        with pytest.raises(Unavailable, match=r"the buffer is stopping \(request id"):
            await tasksets.submit("sums", ROWS)
    assert 1 < servicer.num_asked < servicer.num_breaks


async def test_an_upload_that_nobody_takes_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(async_tasksets, "STALL_SECONDS", 0.2)
    async with client_of(Breaking(num_breaks=-1)) as tasksets:
        with pytest.raises(Unavailable, match=r"accepted nothing for 0.2 s .*request id"):
            await tasksets.submit("sums", iter(ROWS))
