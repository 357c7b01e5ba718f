"""Who watches the health of a service learns of its end, and does not hold it up."""

import asyncio

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from trinity.runtime.rpc.channel import open_channel
from trinity.runtime.rpc.server import serve
from trinity.runtime.settings import ServiceSettings

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
PATIENT = ServiceSettings(drain_seconds=60.0)


async def test_a_watch_hears_the_end_and_does_not_hold_it_up() -> None:
    heard: list[int] = []

    async def watch(channel: grpc.aio.Channel, began: asyncio.Event) -> None:
        stub = health_pb2_grpc.HealthStub(channel)
        async for answer in stub.Watch(health_pb2.HealthCheckRequest()):
            heard.append(answer.status)
            began.set()

    async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
        began = asyncio.Event()
        async with serve(PATIENT, []) as server:
            channel = open_channel(server.address)
            watching = tasks.create_task(watch(channel, began))
            await began.wait()
        await watching
        await channel.close()
    assert heard == [SERVING, NOT_SERVING]
