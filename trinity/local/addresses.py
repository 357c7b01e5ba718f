"""Addresses of a running stack, and the files that hold those with passwords."""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from trinity.local.ports import free_port
from trinity.security.folder import Security

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
    security_dir: str = ""
    """The operator's credentials for these services; empty for plaintext connections."""

    @classmethod
    def on_free_ports(cls, *, nats_url: str, postgres_dsn: str, security_dir: str = "") -> Self:
        """Chooses loopback ports for the services."""
        ports = {name: f"127.0.0.1:{free_port()}" for name in SERVICES}
        return cls(**ports, nats_url=nats_url, postgres_dsn=postgres_dsn, security_dir=security_dir)

    @property
    def security(self) -> Security:
        """The credentials for talking to the services."""
        return Security.of(self.security_dir)


@dataclass(frozen=True, slots=True, kw_only=True)
class InfrastructureFiles:
    """Files of mode 0600 with the addresses that contain passwords, each for one service."""

    buffer_nats_url: Path
    explorer_nats_url: Path
    buffer_postgres_dsn: Path
    synchronizer_postgres_dsn: Path
