"""A synchronizer behind a real socket, on a real database."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import grpc
import psycopg
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from pydantic import SecretStr

from services.synchronizer.__main__ import run
from services.synchronizer.servicer import SERVICE_NAME
from services.synchronizer.settings import SynchronizerSettings
from tests.integration.synchronizer.builders import creation
from trinity.api.v1 import synchronizer_pb2 as pb
from trinity.api.v1.synchronizer_pb2_grpc import SynchronizerServiceStub
from trinity.run.local.addresses import free_port
from trinity.runtime.rpc.channel import open_channel

TIMEOUT = 30.0


@dataclass(frozen=True, slots=True)
class Running:
    """A synchronizer that answers; `stop` asks it to end."""

    stub: SynchronizerServiceStub
    channel: grpc.aio.Channel
    stop: asyncio.Event
    task: asyncio.Task[None]

    async def experiment(self, experiment_id: str) -> pb.Experiment:
        request = pb.GetExperimentRequest(experiment_id=experiment_id)
        answer: pb.GetExperimentResponse = await self.stub.GetExperiment(request, timeout=TIMEOUT)
        return answer.experiment

    async def created(
        self, request: pb.CreateExperimentRequest | None = None
    ) -> pb.CreateExperimentResponse:
        answer: pb.CreateExperimentResponse = await self.stub.CreateExperiment(
            request or creation(), timeout=TIMEOUT
        )
        return answer

    async def wait_health(self, wanted: int) -> None:
        """Return when the service says that it is ready, or that it is not."""
        request = health_pb2.HealthCheckRequest(service=SERVICE_NAME)
        watch = health_pb2_grpc.HealthStub(self.channel).Watch(request, wait_for_ready=True)
        async for answer in watch:
            if answer.status == wanted:
                watch.cancel()
                return


@contextlib.asynccontextmanager
async def running_synchronizer(dsn: str, listen: str = "") -> AsyncIterator[Running]:
    """Serve, by default on a free port, until the block ends."""
    settings = SynchronizerSettings(
        listen=listen or f"127.0.0.1:{free_port()}",
        postgres_dsn=SecretStr(dsn),
        migrate_on_start=True,
        drain_seconds=TIMEOUT,
    )
    stop = asyncio.Event()
    task = asyncio.create_task(run(settings, stop))
    async with open_channel(settings.listen) as channel:
        running = Running(SynchronizerServiceStub(channel), channel, stop, task)
        ready = asyncio.create_task(running.wait_health(health_pb2.HealthCheckResponse.SERVING))
        await asyncio.wait({task, ready}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
        yield running
        stop.set()
        await task


@pytest.fixture
async def synchronizer(synchronizer_dsn: str) -> AsyncIterator[Running]:
    async with running_synchronizer(synchronizer_dsn) as running:
        yield running


@pytest.fixture
async def replica(synchronizer: Running, synchronizer_dsn: str) -> AsyncIterator[Running]:
    """A second synchronizer on the database of the first."""
    assert not synchronizer.task.done()
    async with running_synchronizer(synchronizer_dsn) as running:
        yield running


@pytest.fixture
def age_members(synchronizer_dsn: str) -> Callable[[float], None]:
    """Let every member have been silent for longer."""

    def age(seconds: float) -> None:
        with psycopg.connect(synchronizer_dsn) as connection:
            connection.execute(
                "UPDATE member SET last_heard = last_heard - make_interval(secs => %s)", [seconds]
            )

    return age
