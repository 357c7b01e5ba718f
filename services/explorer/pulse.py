"""What goes on beside the work: heartbeats, readiness, and the first connection to the broker."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.explorer.nats_broker import NatsBroker
from services.explorer.retry import persist
from services.explorer.rpc_errors import translated
from services.explorer.status import NamedWait, Status
from trinity.api.v1.synchronizer_pb2_grpc import SynchronizerServiceStub
from trinity.members import Heartbeats, Waiting
from trinity.rpc.health import Health

logger = logging.getLogger(__name__)

READINESS_SECONDS = 0.5
WATCH_SECONDS = 600.0


async def send_heartbeats(stub: SynchronizerServiceStub, status: Status, address: str) -> None:
    """Say what this process does, soon after each change and every now and then."""
    told: dict[NamedWait, Waiting] = {}
    async with Heartbeats(
        stub, member_id=status.explorer_id, role="explorer", address=address
    ) as beats:
        while True:
            status.changed.clear()
            beats.set_work(status.experiment_id, status.stage)
            beats.set_activity(status.activity)
            beats.set_version(status.loaded_version)
            beats.pin(status.pinned_versions)
            _tell_waits(beats, status, told)
            await status.changed.wait()


def _tell_waits(beats: Heartbeats, status: Status, told: dict[NamedWait, Waiting]) -> None:
    now = set(status.waits)
    for wait in told.keys() - now:
        beats.waits.end(told.pop(wait))
    for wait in now - told.keys():
        told[wait] = beats.waits.begin(for_=wait.waits_for, reason=wait.reason)


async def keep_readiness(health: Health, needs: Mapping[str, Callable[[], bool]]) -> None:
    """Ready while everything needed is usable; else say what is not."""
    while True:
        missing = [name for name, is_usable in needs.items() if not is_usable()]
        await health.set_ready(not missing, f"not usable: {', '.join(missing)}")
        await asyncio.sleep(READINESS_SECONDS)


async def watch_health(channel: grpc.aio.Channel, service: str) -> AsyncIterator[bool]:
    """Stream whether a service calls itself ready."""
    stub = health_pb2_grpc.HealthStub(channel)
    request = health_pb2.HealthCheckRequest(service=service)
    with translated(service):
        async for response in stub.Watch(request, timeout=WATCH_SECONDS):
            yield response.status == health_pb2.HealthCheckResponse.SERVING


async def connect(broker: NatsBroker, status: Status) -> None:
    """Connect for the first time; later the client reconnects by itself."""
    await persist(broker.connect, status=status, waits_for="broker", purpose="connect")
