"""Where the parts of a running stack answer, and the files that hold the secret ones."""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from trinity.local.ports import free_port

SERVICES = ("synchronizer", "buffer", "trainer", "explorer")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceAddresses:
    """The services as host:port; the broker and the database without their passwords."""

    synchronizer: str
    buffer: str
    trainer: str
    explorer: str
    nats_url: str
    postgres_dsn: str

    @classmethod
    def on_free_ports(cls, *, nats_url: str, postgres_dsn: str) -> Self:
        """Choose loopback ports for the services."""
        ports = {name: f"127.0.0.1:{free_port()}" for name in SERVICES}
        return cls(**ports, nats_url=nats_url, postgres_dsn=postgres_dsn)


@dataclass(frozen=True, slots=True, kw_only=True)
class InfrastructureFiles:
    """Files of mode 0600 with the addresses that contain passwords, each for one service."""

    buffer_nats_url: Path
    explorer_nats_url: Path
    buffer_postgres_dsn: Path
    synchronizer_postgres_dsn: Path
