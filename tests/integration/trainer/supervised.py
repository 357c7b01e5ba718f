"""A supervisor at work in the test's own process, on gangs of ranks that only say what they say."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Literal

from services.trainer.control.gang import Gang, GangManager, GangNetwork
from services.trainer.control.jobs import StageWatcher, TrainerReadiness
from services.trainer.control.status import TrainerState
from services.trainer.control.supervisor import TrainingSupervisor
from services.trainer.messages import Event
from services.trainer.settings import TrainerSettings
from tests.integration.trainer.peers import Peers, serve_peers
from trinity.api.v1.synchronizer_pb2_grpc import SynchronizerServiceStub
from trinity.runtime.presence import Heartbeats
from trinity.runtime.rpc.channel import open_channel
from trinity.runtime.rpc.health import Health
from trinity.runtime.rpc.host_group import GroupPlace, HostGroup

Says = list[Event | int | Literal["again"]]
"""What a rank says once it has a stage; see stand_in_rank.py."""
Script = list[Says]
"""What each rank of a gang says."""
OWN_ADDRESS = "127.0.0.1:1"
"""Where the trainer says that it answers."""
RANK = "tests.integration.trainer.stand_in_rank"


def group_of(num_hosts: int) -> HostGroup:
    return HostGroup(
        GroupPlace(
            group="gang", variables="TRINITY_TRAINER", address_variable="", num_hosts=num_hosts
        )
    )


@dataclass
class Scripted:
    """Starts gangs, each with the next script; the last one serves for all that follow."""

    scripts: list[Script]
    num_starts: int = 0
    gangs: list[Gang] = field(default_factory=list)

    async def start(self, num_ranks: int) -> Gang:
        script = self.scripts[min(self.num_starts, len(self.scripts) - 1)]
        self.num_starts += 1
        assert len(script) == num_ranks
        said = [
            [event if isinstance(event, int | str) else event.model_dump() for event in rank]
            for rank in script
        ]
        command = [sys.executable, "-m", RANK, json.dumps(said)]
        gang = await Gang.lead(
            num_ranks=num_ranks,
            network=GangNetwork(address="127.0.0.1"),
            log_level="INFO",
            log_format="text",
            command=command,
        )
        self.gangs.append(gang)
        return gang


@dataclass
class Supervised:
    """What a test looks at."""

    gangs: Scripted
    state: TrainerState
    health: Health
    peers: Peers

    async def until(self, met: Callable[[], bool]) -> None:
        """Wait for it; what the trainer does shows in its heartbeats."""
        await self.peers.until(met, 30.0)


@asynccontextmanager
async def supervised(
    peers: Peers,
    *scripts: Script,
    stop_seconds: float = 1.0,
    hosts: HostGroup | None = None,
    host_wait_seconds: float = 600.0,
) -> AsyncIterator[Supervised]:
    """A trainer without its server; no gang is started before a stage asks."""
    gangs, state = Scripted(list(scripts)), TrainerState(address=OWN_ADDRESS)
    stop, readiness = asyncio.Event(), TrainerReadiness()
    health = Health(("trainer",))
    async with (
        serve_peers(peers) as address,
        open_channel(address) as channel,
        Heartbeats(
            SynchronizerServiceStub(channel),
            member_id=state.trainer_id,
            role="trainer",
            address=state.address,
        ) as state.heartbeats,
        asyncio.TaskGroup() as tasks,
    ):
        watcher = StageWatcher(SynchronizerServiceStub(channel))
        settings = TrainerSettings(
            buffer=address,
            synchronizer=address,
            preload_ranks=0,
            max_restarts=2,
            stop_seconds=stop_seconds,
            host_wait_seconds=host_wait_seconds,
        )
        gang_manager = GangManager(
            start=gangs.start, state=state, stop_seconds=settings.stop_seconds
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
        beside = [
            tasks.create_task(watcher.follow()),
            tasks.create_task(readiness.track_synchronizer(watcher)),
            tasks.create_task(readiness.track_buffer(channel)),
            tasks.create_task(readiness.report_to_health(health)),
        ]
        working = tasks.create_task(supervisor.supervise())
        try:
            yield Supervised(gangs, state, health, peers)
        finally:
            stop.set()
            await asyncio.wait([working])
            for task in beside:
                task.cancel()
