"""A host that goes while a gang begins is missed at once, and slow senders are not cancelled."""

import asyncio

import pytest

from services.trainer.control import agent as agent_module
from services.trainer.control.agent import HostAgent
from services.trainer.control.gang import Gang, RankDied
from services.trainer.control.hosts import HostLink
from services.trainer.control.places import RankPlaces
from services.trainer.control.status import TrainerState
from services.trainer.settings import TrainerSettings
from trinity.api.v1 import trainer_pb2 as pb
from trinity.api.v1.trainer_pb2_grpc import TrainerServiceStub

PLACES = RankPlaces(num_ranks=4, first=2, num_local=2, master_address="127.0.0.1", master_port=1)


@pytest.mark.parametrize("is_lost_before", [True, False])
async def test_a_host_that_is_lost_before_its_ranks_are_asked_for_ends_the_gang(
    is_lost_before: bool,
) -> None:
    host = HostLink(1, "10.0.0.2")
    gang = Gang([], hosts=(host,), num_ranks=4)
    if is_lost_before:
        host.lose("has ended its connection")
    gang._join(host, PLACES, 1)
    host.lose("has ended its connection")
    async with asyncio.timeout(5):
        end = await gang.next_event()
    assert isinstance(end, RankDied) and end.rank == 2
    assert "host 1 (10.0.0.2)" in end.reason


async def test_a_host_that_sends_slowly_is_not_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_module, "BEAT_SECONDS", 0.01)
    settings = TrainerSettings.model_validate(
        {"buffer": "b:1", "synchronizer": "s:1", "num_hosts": 2, "host": 1, "leader": "l:1"}
    )
    agent = HostAgent(
        settings=settings,
        tenant="",
        stub=TrainerServiceStub.__new__(TrainerServiceStub),
        state=TrainerState(),
        start=lambda places: asyncio.sleep(0, Gang([], num_ranks=places.num_ranks)),
        stop=asyncio.Event(),
    )
    report = pb.JoinGangRequest(report=pb.RankReport(gang=1, rank=2, ended="rank 2 ended"))
    sent = agent._requests()
    await anext(sent)
    agent._outgoing.put_nowait(report)
    assert await anext(sent) == report
    await asyncio.sleep(0.05)  # the stream is slow for longer than a beat
    assert await anext(sent) == pb.JoinGangRequest()
    await sent.aclose()  # type: ignore[attr-defined]  # it is a generator
