"""A host that goes while a gang begins is missed at once, and slow senders are not cancelled."""

import asyncio
from typing import NoReturn

import pytest

from services.trainer.control.gang import Gang, RankDied
from services.trainer.control.places import RankPlaces
from trinity.api.v1.hosts_pb2 import HostMessage, HostReport
from trinity.runtime.rpc import host_group
from trinity.runtime.rpc.host_group import GroupPlace, HostAgent, HostLink

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
    monkeypatch.setattr(host_group, "BEAT_SECONDS", 0.01)
    place = GroupPlace(
        group="gang", variables="TRINITY_TRAINER", address_variable="", num_hosts=2, host=1
    )

    def join(_: object) -> NoReturn:
        raise AssertionError

    agent = HostAgent(
        place=place,
        join=join,
        start=lambda _: asyncio.sleep(0, Gang([], num_ranks=2)),
        on_joined=lambda _: None,
    )
    report = HostMessage(report=HostReport(start=1, rank=2, ended="rank 2 ended"))
    outgoing: asyncio.Queue[HostMessage] = asyncio.Queue()
    sent = agent._requests(outgoing)
    await anext(sent)
    outgoing.put_nowait(report)
    assert await anext(sent) == report
    await asyncio.sleep(0.05)  # the stream is slow for longer than a beat
    assert await anext(sent) == HostMessage()
    await sent.aclose()  # type: ignore[attr-defined]  # it is a generator
