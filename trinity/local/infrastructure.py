"""The broker and the database of one stack: embedded ones, or those that the user named."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from trinity.local.addresses import InfrastructureFiles
from trinity.local.external import Externals, without_password
from trinity.local.nats import NatsServer
from trinity.local.ports import free_port
from trinity.local.postgres import PostgresServer, embedded_postgres
from trinity.local.process_spec import ProcessSpec
from trinity.local.secret_files import SecretFiles
from trinity.local.security import StackSecurity
from trinity.security.broker import ADMIN

Probe = Callable[[], Awaitable[None]]
"""Returns when a process is ready."""


@dataclass(frozen=True, slots=True)
class Launchable:
    """A process and a check that it is ready."""

    spec: ProcessSpec
    wait_ready: Probe


@dataclass(slots=True, kw_only=True)
class Infrastructure:
    """Chooses addresses and writes them to files that the services read."""

    job_dir: Path
    externals: Externals
    security: StackSecurity = field(default_factory=StackSecurity)
    nats: NatsServer | None = field(init=False, default=None)
    postgres: PostgresServer | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        folder = self.job_dir / "infra"
        if self.externals.nats_url is None:
            self.nats = NatsServer(
                folder=folder / "nats",
                secrets=self._secrets,
                port=free_port(),
                monitor_port=free_port(),
                security=self.security.of("nats"),
            )
        if self.externals.postgres_dsn is None:
            self.postgres = embedded_postgres(folder / "postgres", self._secrets, free_port())

    async def prepare(self, start: Callable[[Launchable], Awaitable[None]]) -> None:
        """Prepares the embedded servers, handing each over as soon as it can start."""
        async with asyncio.TaskGroup() as tasks:
            if self.postgres is not None:
                tasks.create_task(self._prepare_postgres(self.postgres, start))
            if self.nats is not None:
                tasks.create_task(self._prepare_nats(self.nats, start))

    def write_files(self) -> InfrastructureFiles:
        if self.nats is not None:  # for use with the broker's own tools
            self._secrets.write(f"{ADMIN}-nats-url", self.nats.url(ADMIN))
        return InfrastructureFiles(
            buffer_nats_url=self._secrets.write("buffer-nats-url", self._nats_url("buffer")),
            explorer_nats_url=self._secrets.write("explorer-nats-url", self._nats_url("explorer")),
            buffer_postgres_dsn=self._secrets.write(
                "buffer-postgres-dsn", self._postgres_dsn("buffer")
            ),
            synchronizer_postgres_dsn=self._secrets.write(
                "synchronizer-postgres-dsn", self._postgres_dsn("synchronizer")
            ),
        )

    @property
    def public_nats_url(self) -> str:
        return without_password(self._nats_url("buffer"))

    @property
    def public_postgres_dsn(self) -> str:
        return without_password(self._postgres_dsn("buffer"))

    @property
    def _secrets(self) -> SecretFiles:
        return SecretFiles(self.job_dir / "infra" / "secrets")

    def _nats_url(self, user: str) -> str:
        return self.nats.url(user) if self.nats else self.externals.nats_url or ""

    def _postgres_dsn(self, role: str) -> str:
        return self.postgres.dsn(role) if self.postgres else self.externals.postgres_dsn or ""

    async def _prepare_postgres(
        self, server: PostgresServer, start: Callable[[Launchable], Awaitable[None]]
    ) -> None:
        spec = await asyncio.to_thread(server.prepare, self.job_dir / "log" / "postgres.log")
        await start(Launchable(spec, server.wait_ready))

    async def _prepare_nats(
        self, server: NatsServer, start: Callable[[Launchable], Awaitable[None]]
    ) -> None:
        spec = await asyncio.to_thread(server.prepare, self.job_dir / "log" / "nats.log")
        await start(Launchable(spec, server.wait_ready))
