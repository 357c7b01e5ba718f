"""A host of a gang has a number, a leader and a private address, or a sentence says what lacks."""

import pytest

from services.trainer.control.places import (
    check_place,
    gang_address,
    ranks_per_host,
)
from services.trainer.settings import TrainerSettings
from tests.unit.subtests import as_subtests
from trinity.errors import UserError


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
