"""Background duties: readiness, health of a peer, and the first connection to the broker."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.explorer.calls import following
from services.explorer.nats_broker import NatsBroker
from services.explorer.patience import Patience
from trinity.rpc.health import Health

READINESS_SECONDS = 0.5
WATCH_SECONDS = 600.0


async def keep_readiness(health: Health, needs: Mapping[str, Callable[[], bool]]) -> None:
    """Reports ready while everything needed is usable, otherwise what is not usable."""
    while True:
        missing = [name for name, is_usable in needs.items() if not is_usable()]
        await health.set_ready(not missing, f"not usable: {', '.join(missing)}")
        await asyncio.sleep(READINESS_SECONDS)


async def watch_health(channel: grpc.aio.Channel, service: str) -> AsyncIterator[bool]:
    """Streams the readiness of a service, as it reports it."""
    stub = health_pb2_grpc.HealthStub(channel)
    request = health_pb2.HealthCheckRequest(service=service)
    async for response in following(service, stub.Watch(request, timeout=WATCH_SECONDS)):
        yield response.status == health_pb2.HealthCheckResponse.SERVING


async def connect(broker: NatsBroker, patience: Patience) -> None:
    """Connects for the first time; later the client reconnects by itself."""
    await patience.persist(broker.connect, waits_for="broker", purpose="connect")
