"""Hosts as network namespaces around a router, which drops what goes from one to the other.

Every host has an address and a default route of its own; this process reaches all of them as one
more host, the operator's. A link is cut by a rule of the router that swallows packets without a
word, in one direction or in both: nobody is told that the other is unreachable.
"""

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

NAME = "trinity-hosts"
ROUTER = f"{NAME}-router"
OPERATOR = "trinity-op"
"""This process's end of its way to the router, in the namespace that it lives in."""
NETWORK = "198.18.0.0/16"
"""Set apart for tests of networks: nothing of the world has such an address."""
LOCK = Path(tempfile.gettempdir()) / f"{NAME}.lock"
READY_SECONDS = 10.0
LOOK_SECONDS = 0.02

Direction = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowness:
    """What a slow link does to packets, in each direction."""

    delay_seconds: float = 0.0
    loss: float = 0.0
    """Share of packets that do not arrive."""
    bytes_per_second: float = 0.0
    """0 for as fast as it goes."""


class Network:
    """Use `network_of`. `cut` and `slowed` last as long as their blocks."""

    def __init__(self, places: Sequence[str]) -> None:
        self._number = {place: number for number, place in enumerate(places, start=1)}

    def address(self, place: str) -> str:
        """Where a host is reached."""
        return f"198.18.{self._number[place]}.2"

    def command(self, place: str, argv: Sequence[str]) -> list[str]:
        """A command that runs on this host."""
        return ["ip", "netns", "exec", _namespace(place), *argv]

    @contextmanager
    def cut(self, *directions: Direction) -> Iterator[None]:
        """Let nothing arrive that one host sends to another, each pair one direction."""
        rules = [
            f"from {self.address(sender)} to {self.address(receiver)} blackhole"
            for sender, receiver in directions
        ]
        _ip(ROUTER, [f"rule add {rule}" for rule in rules])
        try:
            yield
        finally:
            _ip(ROUTER, [f"rule del {rule}" for rule in rules])

    @contextmanager
    def slowed(self, place: str, slowness: Slowness) -> Iterator[None]:
        """Let all that a host sends and receives pass a relay of `slow_link`, as netem would."""
        number = self._number[place]
        device = f"slow{number}"
        words = (slowness.delay_seconds, slowness.loss, slowness.bytes_per_second)
        argv = [
            sys.executable,
            "-m",
            "tests.chaos.hosts.slow_link",
            _namespace(place),
            ROUTER,
            device,
        ]
        with subprocess.Popen([*argv, *map(str, words)], stdin=subprocess.PIPE) as relay:
            try:
                _until_there(ROUTER, device)
                _ip(_namespace(place), [f"link set {device} up"])
                _ip(ROUTER, [f"link set {device} up"])
                source = self.address(place)
                # Narrower than the ways that are there, which count again when the devices go.
                _ip(_namespace(place), [f"route add {NETWORK} dev {device} src {source}"])
                _ip(ROUTER, [f"route add {source}/32 dev {device}"])
                yield
            finally:
                relay.kill()

    def _build(self) -> None:
        _run(["ip", "netns", "add", ROUTER])
        _ip(ROUTER, ["link set lo up"])
        _exec(ROUTER, "echo 1 > /proc/sys/net/ipv4/ip_forward")
        _run(["ip", "link", "add", OPERATOR, "type", "veth", "peer", "name", "op", "netns", ROUTER])
        _run(["ip", "address", "add", "198.18.0.2/24", "dev", OPERATOR])
        _run(["ip", "link", "set", OPERATOR, "up"])
        _ip(ROUTER, ["address add 198.18.0.1/24 dev op", "link set op up"])
        _run(["ip", "route", "add", NETWORK, "via", "198.18.0.1"])
        for place, number in self._number.items():
            self._add(place, number)

    def _add(self, place: str, number: int) -> None:
        namespace, way, gateway = _namespace(place), f"way{number}", f"198.18.{number}.1"
        _run(["ip", "netns", "add", namespace])
        _ip(ROUTER, [f"link add {way} type veth peer name eth0 netns {namespace}"])
        _ip(ROUTER, [f"address add {gateway}/24 dev {way}", f"link set {way} up"])
        commands = ["link set lo up", f"address add {self.address(place)}/24 dev eth0"]
        _ip(namespace, [*commands, "link set eth0 up", f"route add default via {gateway}"])


@contextmanager
def network_of(places: Sequence[str]) -> Iterator[Network]:
    """Hosts of these names, one such network on a machine at a time."""
    with LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _remove()  # what a process left that was killed
        network = Network(places)
        try:
            network._build()
            yield network
        finally:
            _remove()


def why_not() -> str:
    """Why there can be no such network here; empty when there can."""
    if shutil.which("ip") is None:
        return "network namespaces need the program `ip` (package iproute2)"
    if not Path("/dev/net/tun").exists():
        return "slow links need /dev/net/tun"
    probe = f"{NAME}-probe-{os.getpid()}"
    try:
        _run(["ip", "netns", "add", probe])
        _ip(probe, ["link add probe type veth peer name other"])
    except subprocess.CalledProcessError as error:
        return f"network namespaces need the rights of root and veth ({error.stderr.strip()})"
    finally:
        subprocess.run(["ip", "netns", "delete", probe], capture_output=True)
    return ""


def _remove() -> None:
    """Everything of that name, whoever made it; the devices go with their namespaces."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    names = [line.split()[0] for line in listed.stdout.splitlines() if line.startswith(NAME)]
    for name in names:
        if "-probe-" not in name:
            _run(["ip", "netns", "delete", name])
    with suppress(subprocess.CalledProcessError):
        _run(["ip", "link", "delete", OPERATOR])


def _until_there(namespace: str, device: str) -> None:
    deadline = time.monotonic() + READY_SECONDS
    look = ["ip", "-n", namespace, "link", "show", device]
    while subprocess.run(look, capture_output=True).returncode != 0:
        assert time.monotonic() < deadline, f"the relay has not made {device}"
        time.sleep(LOOK_SECONDS)


def _namespace(place: str) -> str:
    return f"{NAME}-{place}"


def _ip(namespace: str, commands: Sequence[str]) -> None:
    _run(["ip", "-n", namespace, "-batch", "-"], "\n".join(commands))


def _exec(namespace: str, script: str) -> None:
    _run(["ip", "netns", "exec", namespace, "sh", "-c", script])


def _run(argv: Sequence[str], typed: str = "") -> None:
    subprocess.run(argv, input=typed, text=True, capture_output=True, check=True)
