"""Ports do not repeat where a program seeds its random numbers, and stay reserved once chosen."""

import random
import socket
import subprocess
import sys

import pytest

from trinity.run.local import addresses
from trinity.run.local.addresses import free_port

PICK = """
import random
random.seed(1)
from trinity.run.local.addresses import free_port
print(free_port())
"""


def test_two_programs_with_the_same_seed_pick_different_ports() -> None:
    picked = {subprocess.check_output([sys.executable, "-c", PICK]) for _ in range(3)}
    assert len(picked) > 1


def test_picking_a_port_leaves_the_random_numbers_as_they_are() -> None:
    random.seed(1)
    expected = random.random()
    random.seed(1)
    free_port()
    assert random.random() == expected


def test_no_other_launcher_chooses_a_port_that_is_not_bound_by_its_server_yet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    port = free_port()
    monkeypatch.setattr(addresses, "_reserved", {})  # what another process knows
    assert not addresses._reserve(port)


def test_its_server_binds_it_also_when_it_starts_again() -> None:
    port = free_port()
    for _ in range(2):
        with (
            socket.create_server(("127.0.0.1", port)) as server,  # with SO_REUSEADDR
            socket.create_connection(server.getsockname()),
        ):
            server.accept()[0].close()


def test_while_a_server_listens_another_one_is_told_so() -> None:
    port = free_port()
    with (
        socket.create_server(("127.0.0.1", port)),
        pytest.raises(OSError, match="Address already in use"),
    ):
        socket.create_server(("127.0.0.1", port))


def test_what_a_program_without_the_option_asks_for_is_not_given_away() -> None:
    with socket.socket() as plain, pytest.raises(OSError, match="Address already in use"):
        plain.bind(("127.0.0.1", free_port()))


def test_reservations_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "_reserved", {})
    monkeypatch.setattr(addresses, "_MAX_RESERVED", 2)
    ports = [free_port() for _ in range(3)]
    assert list(addresses._reserved) == ports[1:]
