"""Addresses and directory of a local stack: free loopback ports, service addresses, secrets."""

import os
import random
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from trinity.runtime.security.credentials import Credentials

_EPHEMERAL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST_PORT = 10_240
_RANDOM = random.SystemRandom()
"""Not the shared generator: programs with the same seed would pick the same ports at once."""
_MAX_RESERVED = 256
_reserved: dict[int, int] = {}
"""Ports that were handed out, oldest first, and a socket of this process that is bound to each."""
SERVICES = ("synchronizer", "buffer", "trainer", "explorer")
_NAME = "home.txt"
LOOPBACK = "127.0.0.1"


def free_port(host: str = LOOPBACK) -> int:
    """Returns an unused port of this machine, for a server that sets SO_REUSEADDR, as servers do.

    It is below the kernel's range for outgoing connections: otherwise a service that restarts on
    its old port could find it taken by a client that kept retrying. This process stays bound to it
    without listening, so that no other launcher chooses it before, or between two starts of, its
    server.
    """
    ports = _candidates()
    for _ in range(1_000):
        port = _RANDOM.choice(ports)
        if port not in _reserved and _reserve(port, host):
            return port
    raise RuntimeError(f"no free port of {host} between {ports.start} and {ports.stop - 1}")


def _candidates() -> range:
    ephemeral_start = int(_EPHEMERAL_RANGE.read_text().split()[0])
    if ephemeral_start - _LOWEST_PORT < 1_000:
        return range(_LOWEST_PORT, 65_536)
    return range(_LOWEST_PORT, ephemeral_start)


def _reserve(port: int, host: str = LOOPBACK) -> bool:
    """Binds a port that no other socket is bound to; a server with SO_REUSEADDR may bind it too."""
    own = socket.socket()
    try:
        own.bind((host, port))
    except OSError:
        own.close()
        return False
    own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # only now: the bind was exclusive
    _reserved[port] = own.detach()
    if len(_reserved) > _MAX_RESERVED:
        os.close(_reserved.pop(next(iter(_reserved))))
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceAddresses:
    """The services as host:port; the broker and the database without their passwords."""

    synchronizer: str
    buffer: str
    trainer: str
    explorer: str
    nats_url: str
    postgres_dsn: str
    security_dir: str = ""
    """The operator's credentials for these services; empty for plaintext connections."""

    @classmethod
    def with_free_ports(
        cls, *, nats_url: str, postgres_dsn: str, security_dir: str = "", host: str = LOOPBACK
    ) -> Self:
        """Chooses ports of this machine's address for the services."""
        ports = {name: f"{host}:{free_port(host)}" for name in SERVICES}
        return cls(**ports, nats_url=nats_url, postgres_dsn=postgres_dsn, security_dir=security_dir)

    @property
    def security(self) -> Credentials:
        """The credentials for talking to the services."""
        return Credentials.from_folder(self.security_dir)


@dataclass(frozen=True, slots=True, kw_only=True)
class InfrastructureFiles:
    """Files of mode 0600 with the addresses that contain passwords, each for one service."""

    buffer_nats_url: Path
    explorer_nats_url: Path
    buffer_postgres_dsn: Path
    synchronizer_postgres_dsn: Path


def write_stack_directory(job_dir: Path, home: Path) -> None:
    """Records the directory of the stack."""
    if home != job_dir:
        (job_dir / _NAME).write_text(f"{home}\n")


def stack_directory_of(job_dir: Path) -> Path:
    """Returns the stack's directory: the job's own, unless it was started in another job's."""
    try:
        return Path((job_dir / _NAME).read_text().strip())
    except FileNotFoundError:
        return job_dir
