"""Entry point of the trainer service, `python -m services.trainer`; only its ranks run torch."""

import asyncio
import sys
from contextlib import AsyncExitStack

from services.trainer.control.gang import Gang, GangManager, StartGang
from services.trainer.control.jobs import StageWatcher, TrainerReadiness
from services.trainer.control.status import TrainerServicer, TrainerState
from services.trainer.control.supervisor import TrainingSupervisor
from services.trainer.settings import TrainerSettings
from trinity.api.v1 import trainer_pb2_grpc
from trinity.api.v1.synchronizer_pb2_grpc import SynchronizerServiceStub
from trinity.rpc.channel import open_channel
from trinity.rpc.runner import run_service
from trinity.rpc.server import Servicer, serve
from trinity.runtime.presence import Heartbeats
from trinity.security.credentials import Credentials
from trinity.security.worker_tenant import worker_tenant

SERVICE_NAME = "trinity.api.v1.TrainerService"


async def run_trainer(settings: TrainerSettings, stop: asyncio.Event) -> None:
    """Serves and trains until told to stop."""
    state = TrainerState()
    tenant = worker_tenant(
        "trainer",
        settings.tenant,
        Credentials.from_environment(),
        serves_all=settings.all_tenants,
    )
    async with (
        serve(settings, [_servicer(state)]) as server,
        open_channel(settings.synchronizer) as channel,
        open_channel(settings.buffer) as buffer_channel,
        AsyncExitStack() as stack,
        asyncio.TaskGroup() as tasks,
    ):
        state.address = server.address
        stub = SynchronizerServiceStub(channel)
        watcher = StageWatcher(stub, tenant)
        heartbeats = Heartbeats(
            stub, member_id=state.trainer_id, role="trainer", address=state.address
        )
        state.heartbeats = await stack.enter_async_context(heartbeats)
        readiness = TrainerReadiness(heartbeats.waits)
        background = [
            tasks.create_task(watcher.follow()),
            tasks.create_task(readiness.track_synchronizer(watcher)),
            tasks.create_task(readiness.track_buffer(buffer_channel)),
            tasks.create_task(readiness.report_to_health(server.health)),
        ]
        gang_manager = GangManager(
            start=_starter(settings), state=state, stop_seconds=settings.stop_seconds
        )
        supervisor = TrainingSupervisor(
            settings=settings,
            watcher=watcher,
            state=state,
            gang_manager=gang_manager,
            readiness=readiness,
            stop=stop,
        )
        await supervisor.supervise()
        for task in background:
            task.cancel()


def _servicer(state: TrainerState) -> Servicer:
    return Servicer(
        name=SERVICE_NAME,
        add=trainer_pb2_grpc.add_TrainerServiceServicer_to_server,
        implementation=TrainerServicer(state),
    )


def _starter(settings: TrainerSettings) -> StartGang:
    async def start(num_ranks: int) -> Gang:
        return await Gang.start(
            num_ranks=num_ranks, log_level=settings.log_level, log_format=settings.log_format
        )

    return start


def main() -> int:
    """Entry point of `trinity-trainer`."""
    return run_service("trainer", TrainerSettings, run_trainer)


if __name__ == "__main__":
    sys.exit(main())
