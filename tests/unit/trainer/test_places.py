"""Hosts of a trainer have numbers and private addresses, and one that is lost is missed."""

import asyncio
from typing import NoReturn

import pytest

from services.trainer.control.gang import Gang, RankDied
from services.trainer.control.places import (
    RankPlaces,
    check_place,
    gang_address,
    ranks_per_host,
)
from services.trainer.settings import TrainerSettings
from tests.unit.subtests import as_subtests
from trinity.api.v1.hosts_pb2 import HostMessage, HostReport
from trinity.errors import UserError
from trinity.runtime.rpc import host_group
from trinity.runtime.rpc.host_group import GroupPlace, HostAgent, HostLink

PLACES = RankPlaces(num_ranks=4, first=2, num_local=2, master_address="127.0.0.1", master_port=1)


def settings(**values: object) -> TrainerSettings:
    return TrainerSettings.model_validate({"buffer": "b:1", "synchronizer": "s:1", **values})


def test_a_host_alone_needs_nothing() -> None:
    check_place(settings())
    check_place(settings(num_hosts=2))
    check_place(settings(num_hosts=2, host=1, leader="127.0.0.1:5", gang_address="127.0.0.2"))


@as_subtests(
    ("values", "said"),
    [
        ({"host": 1}, "TRINITY_TRAINER_HOST is 1, and TRINITY_TRAINER_NUM_HOSTS 1"),
        ({"num_hosts": 2, "host": 1}, "give its host:port as TRINITY_TRAINER_LEADER"),
        (
            {"num_hosts": 2, "host": 1, "leader": "10.0.0.1:5"},
            "which the leader 10.0.0.1:5 does not",
        ),
        ({"num_hosts": 2, "gang_address": "0.0.0.0"}, "ranks talk without encryption"),
        ({"num_hosts": 2, "gang_address": "8.8.8.8"}, "ranks talk without encryption"),
        ({"num_hosts": 2, "gang_address": "2606:4700::1111"}, "ranks talk without encryption"),
        ({"num_hosts": 2, "gang_address": "trainer-0"}, "give an IP address"),
        ({"num_hosts": 2, "gang_address": "10.255.254.253"}, "no network interface of this host"),
    ],
)
def test_what_is_wrong_is_named_with_its_variable(values: dict[str, object], said: str) -> None:
    with pytest.raises(UserError, match=said):
        check_place(settings(**values))


def test_ranks_are_shared_out_evenly() -> None:
    assert [ranks_per_host(32, 4), ranks_per_host(3, 1)] == [8, 3]
    with pytest.raises(UserError, match="6 ranks cannot be shared out evenly over 4 hosts"):
        ranks_per_host(6, 4)


def test_interfaces_follow_from_the_address_unless_the_operator_names_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loopback = gang_address("127.0.0.1").interface()
    for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.delenv(variable, raising=False)
    assert gang_address("127.0.0.2").interface_variables() == {
        "GLOO_SOCKET_IFNAME": loopback,
        "NCCL_SOCKET_IFNAME": loopback,
    }
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", loopback)
    assert gang_address("127.0.0.1").interface_variables() == {"GLOO_SOCKET_IFNAME": loopback}


@pytest.mark.parametrize(
    ("variable", "named"),
    [
        ("NCCL_SOCKET_IFNAME", "ib77"),
        ("NCCL_SOCKET_IFNAME", "=ib77"),
        ("GLOO_SOCKET_IFNAME", "ib77"),
        ("GLOO_SOCKET_IFNAME", "l"),
    ],
)
def test_an_interface_that_there_is_not_is_refused_at_the_start(
    monkeypatch: pytest.MonkeyPatch, variable: str, named: str
) -> None:
    monkeypatch.setenv(variable, named)
    with pytest.raises(UserError, match=f"{variable} is {named}, and this host has"):
        check_place(settings(num_hosts=2))


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
