"""Entry point of the trainer service, `python -m services.trainer`; only its ranks run torch."""

import asyncio
import itertools
import json
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack

from services.trainer.control.gang import (
    RANK_COMMAND,
    Gang,
    GangManager,
    GangNetwork,
    StartGang,
)
from services.trainer.control.jobs import StageWatcher, TrainerReadiness
from services.trainer.control.places import RankPlaces, check_place, group_place
from services.trainer.control.status import TrainerServicer, TrainerState
from services.trainer.control.supervisor import TrainingSupervisor
from services.trainer.settings import TrainerSettings
from trinity.api.v1 import trainer_pb2_grpc
from trinity.api.v1.synchronizer_pb2_grpc import SynchronizerServiceStub
from trinity.runtime.loops import LoopKeeper
from trinity.runtime.presence import Heartbeats
from trinity.runtime.rpc.channel import open_channel
from trinity.runtime.rpc.host_group import HostAgent, HostGroup
from trinity.runtime.rpc.runner import run_service
from trinity.runtime.rpc.server import Servicer, serve
from trinity.runtime.security.credentials import Credentials
from trinity.runtime.security.worker_tenant import worker_tenant

SERVICE_NAME = "trinity.api.v1.TrainerService"
LEADER_WAIT = "leader"
StartPart = Callable[[RankPlaces], Awaitable[Gang]]
"""Starts the ranks of a host that does not lead."""


async def run_trainer(settings: TrainerSettings, stop: asyncio.Event) -> None:
    """Serves and trains until told to stop."""
    state = TrainerState()
    tenant = worker_tenant(
        "trainer",
        settings.tenant,
        Credentials.from_environment(),
        serves_all=settings.all_tenants,
    )
    check_place(settings)
    hosts = _hosts_of(settings, tenant)
    async with (
        serve(settings, [_servicer(state, hosts)]) as server,
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
        keeper = LoopKeeper(waits=heartbeats.waits, report=server.health.set_loop)
        background = [
            tasks.create_task(watcher.follow()),
            *(
                tasks.create_task(keeper.keep_running(name, loop))
                for name, loop in readiness.loops(watcher, buffer_channel, server.health).items()
            ),
        ]
        if settings.host:
            await _serve_leader(settings, tenant, state, stop)
            for task in background:
                task.cancel()
            return
        gang_manager = GangManager(
            start=_starter(settings, hosts), state=state, stop_seconds=settings.stop_seconds
        )
        supervisor = TrainingSupervisor(
            settings=settings,
            watcher=watcher,
            state=state,
            gang_manager=gang_manager,
            readiness=readiness,
            stop=stop,
            hosts=hosts,
        )
        state.save_and_stop = supervisor.save_and_stop
        await supervisor.supervise()
        for task in background:
            task.cancel()


def _hosts_of(settings: TrainerSettings, tenant: str) -> HostGroup | None:
    """Returns the hosts of a gang of several, on the one that leads it."""
    if settings.num_hosts == 1 or settings.host:
        return None
    return HostGroup(group_place(settings, tenant))


async def _serve_leader(
    settings: TrainerSettings, tenant: str, state: TrainerState, stop: asyncio.Event
) -> None:
    """Runs the ranks that the leader asks for, until told to stop."""
    start_part = _part_starter(settings)

    async def start(order: str) -> Gang:
        gang = await start_part(RankPlaces(**json.loads(order)))
        state.num_ranks = gang.num_ranks
        state.num_gang_starts += 1
        return gang

    def show(reason: str) -> None:
        if reason:
            state.set_wait(LEADER_WAIT, waits_for="the leading trainer", reason=reason)
        else:
            state.clear_wait(LEADER_WAIT)

    async with open_channel(settings.leader) as channel, asyncio.TaskGroup() as tasks:
        agent = HostAgent(
            place=group_place(settings, tenant),
            join=trainer_pb2_grpc.TrainerServiceStub(channel).JoinGang,
            start=start,
            on_joined=show,
        )
        serving = tasks.create_task(agent.serve_leader())
        await stop.wait()
        serving.cancel()


def _servicer(state: TrainerState, hosts: HostGroup | None) -> Servicer:
    return Servicer(
        name=SERVICE_NAME,
        add=trainer_pb2_grpc.add_TrainerServiceServicer_to_server,
        implementation=TrainerServicer(state, hosts),
    )


def _part_starter(settings: TrainerSettings, command: Sequence[str] = RANK_COMMAND) -> StartPart:
    async def start(places: RankPlaces) -> Gang:
        return await Gang.start_part(
            places,
            address=settings.gang_address,
            log_level=settings.log_level,
            log_format=settings.log_format,
            command=command,
        )

    return start


def _starter(
    settings: TrainerSettings, hosts: HostGroup | None, command: Sequence[str] = RANK_COMMAND
) -> StartGang:
    numbers = itertools.count(1)

    async def start(num_ranks: int) -> Gang:
        network = GangNetwork(
            address=settings.gang_address if hosts else "127.0.0.1",
            hosts=hosts.links if hosts else (),
            number=next(numbers),
        )
        return await Gang.lead(
            num_ranks=num_ranks,
            network=network,
            log_level=settings.log_level,
            log_format=settings.log_format,
            command=command,
        )

    return start


def main() -> int:
    """Entry point of `trinity-trainer`."""
    return run_service("trainer", TrainerSettings, run_trainer)


if __name__ == "__main__":
    sys.exit(main())
