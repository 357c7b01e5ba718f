"""A gang over two hosts, on loopback addresses: what is lost is named, and the gang goes on."""

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc
import pytest

import trinity
from services.trainer.control.gang import Gang, GangNetwork, RankDied, RankEvent
from services.trainer.control.places import RankPlaces, group_place
from services.trainer.control.status import TrainerServicer, TrainerState
from services.trainer.messages import RankActivity, StageOrder
from services.trainer.settings import TrainerSettings
from trinity.api.v1 import trainer_pb2_grpc
from trinity.api.v1.hosts_pb2 import HostHello, HostMessage, HostReport
from trinity.errors import UserError
from trinity.runtime.rpc import host_group
from trinity.runtime.rpc.channel import open_channel
from trinity.runtime.rpc.host_group import HostAgent, HostGroup
from trinity.runtime.rpc.server import Servicer, serve

SECONDS = 30.0
RANK = "tests.integration.trainer.stand_in_rank"
LEADER, OTHER = "127.0.0.1", "127.0.0.2"
TRAINING = RankActivity(activity="training", incarnation=1, step=1)
SAYS = [[TRAINING.model_dump()]] * 4
ORDER = StageOrder(
    tenant="",
    experiment_id="e",
    stage="s",
    seed=0,
    plan_json="{}",
    job_dir="/tmp",
    start_path="/m",
    start_manifest_sha256="",
    trainer_id="t",
    buffer_address="b",
    synchronizer_address="s",
)


def command_of(says: object) -> list[str]:
    return [sys.executable, "-m", RANK, json.dumps(says)]


def settings_of(host: int, leader: str = "") -> TrainerSettings:
    return TrainerSettings(
        buffer="127.0.0.1:1",
        synchronizer="127.0.0.1:1",
        num_hosts=2,
        host=host,
        leader=leader,
        gang_address=OTHER if host else LEADER,
    )


@dataclass
class Leader:
    """The side that a test looks at."""

    hosts: HostGroup
    address: str

    async def lead(self, says: object = SAYS, number: int = 1) -> Gang:
        await until(lambda: not self.hosts.missing)
        network = GangNetwork(address=LEADER, hosts=self.hosts.links, number=number)
        return await Gang.lead(
            num_ranks=4,
            network=network,
            log_level="INFO",
            log_format="text",
            command=command_of(says),
        )


async def until(met: Callable[[], bool]) -> None:
    async with asyncio.timeout(SECONDS):
        while not met():  # noqa: ASYNC110  # states of several parties, none of which tells
            await asyncio.sleep(0.01)


@asynccontextmanager
async def leading() -> AsyncIterator[Leader]:
    hosts = HostGroup(group_place(settings_of(0), ""))
    servicer = Servicer(
        name="trinity.api.v1.TrainerService",
        add=trainer_pb2_grpc.add_TrainerServiceServicer_to_server,
        implementation=TrainerServicer(TrainerState(), hosts),
    )
    async with serve(settings_of(0), [servicer]) as server:
        yield Leader(hosts, server.address)


@dataclass
class Agent:
    """The other host."""

    parts: list[Gang]


@asynccontextmanager
async def an_agent(leader: str, says: object = SAYS) -> AsyncIterator[Agent]:
    parts: list[Gang] = []

    async def start(order: str) -> Gang:
        part = await Gang.start_part(
            RankPlaces(**json.loads(order)),
            address=OTHER,
            log_level="INFO",
            log_format="text",
            command=command_of(says),
        )
        parts.append(part)
        return part

    async with open_channel(leader) as channel:
        agent = HostAgent(
            place=group_place(settings_of(1, leader), ""),
            join=trainer_pb2_grpc.TrainerServiceStub(channel).JoinGang,
            start=start,
            on_joined=lambda _: None,
        )
        task = asyncio.create_task(agent.serve_leader())
        try:
            yield Agent(parts)
        finally:
            assert not task.done()
            task.cancel()
            async with asyncio.timeout(SECONDS):
                await asyncio.wait([task])


async def next_end(gang: Gang) -> RankDied:
    async with asyncio.timeout(SECONDS):
        while not isinstance(received := await gang.next_event(), RankDied):
            pass
    return received


async def test_ranks_of_both_hosts_are_one_gang() -> None:
    async with leading() as leader, an_agent(leader.address) as agent:
        gang = await leader.lead()
        gang.send_stage(ORDER)
        async with asyncio.timeout(SECONDS):
            received = [await gang.next_event() for _ in range(4)]
        assert gang.num_ranks == 4
        assert all(isinstance(one, RankEvent) and one.event == TRAINING for one in received)
        assert sorted(one.rank for one in received) == [0, 1, 2, 3]
        (part,) = agent.parts
        assert part.num_ranks == 2
        await gang.kill()
        await until(lambda: all(rank.process.returncode is not None for rank in part._ranks))


async def test_a_rank_that_dies_elsewhere_is_named_with_its_host() -> None:
    says = [[], [], [], [9]]
    async with leading() as leader, an_agent(leader.address, says):
        gang = await leader.lead(says)
        gang.send_stage(ORDER)
        end = await next_end(gang)
        assert end == RankDied(3, f"rank 3 ended with code 9 on host 1 ({OTHER})")
        await gang.kill()


async def test_a_host_that_ends_is_named_and_a_later_gang_has_it_again() -> None:
    async with leading() as leader:
        async with an_agent(leader.address):
            gang = await leader.lead()
        end = await next_end(gang)
        assert end.reason.startswith(f"host 1 ({OTHER}) has ended its connection")
        assert not gang.is_whole
        await gang.kill()
        assert leader.hosts.missing == (1,)
        async with an_agent(leader.address):
            again = await leader.lead(number=2)
            again.send_stage(ORDER)
            async with asyncio.timeout(SECONDS):
                received = [await again.next_event() for _ in range(4)]
            assert all(isinstance(one, RankEvent) for one in received)
            await again.kill()


async def test_a_host_that_hangs_is_named_within_ten_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its side is held up as a stopped process would be; times are a tenth of the real ones."""
    assert host_group.LOST_SECONDS + host_group.BEAT_SECONDS <= 10
    monkeypatch.setattr(host_group, "LOST_SECONDS", 0.8)
    monkeypatch.setattr(host_group, "BEAT_SECONDS", 0.2)
    async with leading() as leader, open_channel(leader.address) as channel:
        silent = asyncio.Event()

        async def hello_then_nothing() -> AsyncIterator[HostMessage]:
            yield HostMessage(hello=a_hello())
            await silent.wait()

        call = trainer_pb2_grpc.TrainerServiceStub(channel).JoinGang(hello_then_nothing())
        gang = await leader.lead()
        end = await next_end(gang)
        assert end == RankDied(2, f"host 1 ({OTHER}) has not answered for 1 s")
        silent.set()
        call.cancel()
        await gang.kill()


async def test_ranks_do_not_outlive_a_leader_that_is_gone() -> None:
    async with leading() as leader:
        agents = an_agent(leader.address)
        agent = await agents.__aenter__()
        gang = await leader.lead()
        await until(lambda: bool(agent.parts))
        (part,) = agent.parts
        await gang.kill()
    await until(lambda: all(rank.process.returncode is not None for rank in part._ranks))
    await agents.__aexit__(None, None, None)


async def test_what_an_earlier_gang_says_is_not_heard() -> None:
    async with leading() as leader, an_agent(leader.address):
        old = await leader.lead(number=1)
        (link,) = leader.hosts.links
        await old.kill()
        new = await leader.lead(number=2)
        late = HostReport(start=1, rank=2, ended="rank 2 was killed")
        link.hear(HostMessage(report=late))
        assert new._events.empty()
        link.hear(HostMessage(report=HostReport(start=2, rank=2, ended="rank 2 died")))
        assert not new._events.empty()
        await new.kill()


def a_hello(**changes: object) -> HostHello:
    hello = HostHello(
        host=1,
        num_hosts=2,
        release=trinity.__version__,
        unix_millis=int(time.time() * 1000),
        address=OTHER,
    )
    for name, value in changes.items():
        setattr(hello, name, value)
    return hello


@pytest.mark.parametrize(
    ("changes", "code", "said"),
    [
        ({"host": 0}, grpc.StatusCode.INVALID_ARGUMENT, "host 0 of 2"),
        ({"host": 2}, grpc.StatusCode.INVALID_ARGUMENT, "host 2 of 2"),
        ({"num_hosts": 4}, grpc.StatusCode.INVALID_ARGUMENT, "worker group of 2"),
        ({"release": "0.0.1"}, grpc.StatusCode.FAILED_PRECONDITION, "release 0.0.1"),
        ({"unix_millis": 1000}, grpc.StatusCode.FAILED_PRECONDITION, "clock of host 1"),
        ({"address": "10.0.0.7"}, grpc.StatusCode.FAILED_PRECONDITION, "the address 10.0.0.7"),
        ({"tenant": "other"}, grpc.StatusCode.PERMISSION_DENIED, "another tenant"),
    ],
)
async def test_a_host_that_does_not_fit_is_refused_in_a_sentence(
    changes: dict[str, object], code: grpc.StatusCode, said: str
) -> None:
    async with leading() as leader, open_channel(leader.address) as channel:
        assert said in await refusal_of(channel, a_hello(**changes), code)
        assert leader.hosts.missing == (1,)


async def test_a_second_host_of_the_same_number_is_refused_while_the_first_lives() -> None:
    async with leading() as leader, an_agent(leader.address):
        await until(lambda: not leader.hosts.missing)
        async with open_channel(leader.address) as channel:
            said = await refusal_of(channel, a_hello(), grpc.StatusCode.FAILED_PRECONDITION)
    assert f"there is a host 1 already, {OTHER}" in said


async def refusal_of(channel: grpc.aio.Channel, hello: HostHello, code: grpc.StatusCode) -> str:
    async def requests() -> AsyncIterator[HostMessage]:
        yield HostMessage(hello=hello)

    call = trainer_pb2_grpc.TrainerServiceStub(channel).JoinGang(requests(), timeout=SECONDS)
    with pytest.raises(grpc.aio.AioRpcError) as error:
        async for _ in call:
            pass
    assert error.value.code() is code
    return str(error.value.details())


async def test_ranks_that_do_not_divide_are_refused() -> None:
    async with leading() as leader, an_agent(leader.address):
        await until(lambda: not leader.hosts.missing)
        network = GangNetwork(address=LEADER, hosts=leader.hosts.links)
        with pytest.raises(UserError, match="3 ranks cannot be shared out evenly over 2 hosts"):
            await Gang.lead(num_ranks=3, network=network, log_level="INFO", log_format="text")
