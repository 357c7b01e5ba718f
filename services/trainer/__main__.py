"""The trainer service: `python -m services.trainer`. Torch lives in its ranks, not here."""

import asyncio
import sys
from contextlib import AsyncExitStack

from services.trainer.jobs import JobBoard
from services.trainer.servicer import TrainerServicer
from services.trainer.settings import TrainerSettings
from services.trainer.state import TrainerState
from services.trainer.supervision import Supervisor
from trinity.api.v1 import trainer_pb2_grpc
from trinity.api.v1.synchronizer_pb2_grpc import SynchronizerServiceStub
from trinity.members import Heartbeats
from trinity.rpc.channel import open_channel
from trinity.rpc.runner import run_service
from trinity.rpc.server import RunningServer, Servicer, serve

SERVICE_NAME = "trinity.api.v1.TrainerService"


async def run(settings: TrainerSettings, stop: asyncio.Event) -> None:
    """Serve and train until told to stop."""
    state = TrainerState()
    servicer = Servicer(
        name=SERVICE_NAME,
        add=trainer_pb2_grpc.add_TrainerServiceServicer_to_server,
        implementation=TrainerServicer(state),
    )
    async with (
        serve(settings, [servicer]) as server,
        open_channel(settings.synchronizer) as channel,
        AsyncExitStack() as stack,
        asyncio.TaskGroup() as tasks,
    ):
        stub = SynchronizerServiceStub(channel)
        board = JobBoard(stub)
        beats = Heartbeats(stub, member_id=state.trainer_id, role="trainer", address=server.address)
        state.heartbeats = await stack.enter_async_context(beats)
        background = [
            tasks.create_task(board.follow()),
            tasks.create_task(_keep_health(server, board)),
        ]
        supervisor = Supervisor(settings=settings, board=board, state=state, stop=stop)
        await supervisor.run()
        for task in background:
            task.cancel()


async def _keep_health(server: RunningServer, board: JobBoard) -> None:
    """Ready only while the synchronizer says what to do."""
    while True:
        seen = board.num_news
        await server.health.set_ready(board.is_connected, "the synchronizer does not answer")
        await board.wait_for_news(seen)


def main() -> int:
    """Entry point of `trinity-trainer`."""
    return run_service("trainer", TrainerSettings, run)


if __name__ == "__main__":
    sys.exit(main())
