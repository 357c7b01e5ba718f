"""Broker and database of a local stack: embedded ones, or servers that the user names."""

import asyncio
import os
import urllib.parse
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import nats
import nats.errors
import nats.js.errors

from trinity.errors import UserError
from trinity.run.local.addresses import LOOPBACK, InfrastructureFiles, free_port
from trinity.run.local.files import StackCredentials
from trinity.run.local.given_run import is_registered, refuse_given_database, register_database
from trinity.run.local.nats import NatsServer
from trinity.run.local.postgres import PostgresServer, embedded_postgres
from trinity.run.local.process_spec import ProcessSpec
from trinity.runtime.security.broker import ADMIN, client_options
from trinity.runtime.security.credentials import VARIABLE as SECURITY_DIR
from trinity.runtime.security.secret_files import SecretFiles

_NATS_URL = "TRINITY_NATS_URL"
_POSTGRES_DSN = "TRINITY_POSTGRES_DSN"
SECRET_VARIABLES = frozenset(
    name + suffix for name in (_NATS_URL, _POSTGRES_DSN) for suffix in ("", "_FILE")
) | {SECURITY_DIR}
_ANSWER_SECONDS = 3
ReadinessProbe = Callable[[], Awaitable[None]]
"""Returns when a process is ready."""


@dataclass(frozen=True, slots=True)
class ExternalServers:
    """Addresses with passwords; None for a server that the launcher starts."""

    nats_url: str | None = field(default=None, repr=False)
    postgres_dsn: str | None = field(default=None, repr=False)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "ExternalServers":
        return cls(_given(_NATS_URL, environment), _given(_POSTGRES_DSN, environment))

    async def check_reachable(self) -> None:
        """Checks that the named servers answer.

        Raises: UserError naming the address, without its password.
        """
        if self.nats_url is not None:
            await _check_nats(self.nats_url)
        if self.postgres_dsn is not None:
            await _check_postgres(self.postgres_dsn)


def without_user_and_password(address: str) -> str:
    """Returns the address without user and password."""
    parts = urllib.parse.urlsplit(address)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _given(name: str, environment: Mapping[str, str]) -> str | None:
    value, path = environment.get(name), environment.get(f"{name}_FILE")
    if value and path:
        raise UserError(f"Both {name} and {name}_FILE are set: unset one of them")
    if path:
        try:
            return Path(path).read_text().strip()
        except OSError as error:
            raise UserError(f"{name}_FILE: cannot read {path}: {error.strerror}") from error
    return value or None


async def _check_nats(url: str) -> None:
    async def ignore(_: Exception) -> None:
        """Ignores the error: the failed attempt raises it; by default the client logs it, too."""

    try:
        client = await nats.connect(
            url,
            allow_reconnect=False,
            connect_timeout=_ANSWER_SECONDS,
            max_reconnect_attempts=1,
            error_cb=ignore,
            **client_options(url),
        )
        await client.jetstream().account_info()
        await client.close()
    except (nats.errors.Error, nats.js.errors.Error, OSError, TimeoutError) as error:
        raise UserError(
            f"The broker at {without_user_and_password(url)} does not answer with JetStream: start "
            f"it, or correct or unset {_NATS_URL} ({error or type(error).__name__})"
        ) from error


async def _check_postgres(dsn: str) -> None:
    from trinity.runtime.postgres import (
        wait_until_up,  # imported late: SQLAlchemy takes half a second
    )

    try:
        await wait_until_up(dsn, _ANSWER_SECONDS)
    except UserError as error:
        raise UserError(f"{_POSTGRES_DSN}: {error}") from error


@dataclass(frozen=True, slots=True)
class ProcessWithProbe:
    """A process and a check that it is ready."""

    spec: ProcessSpec
    wait_ready: ReadinessProbe
    is_refusing: Callable[[], bool] = lambda: False
    """True while it serves no client before a restart: it waits for its clients to leave
    before it ends, or an error of its disk that is over stays."""


@dataclass(slots=True, kw_only=True)
class Infrastructure:
    """Chooses addresses and writes them to files that the services read."""

    job_dir: Path
    externals: ExternalServers
    security: StackCredentials = field(default_factory=StackCredentials)
    is_given: bool = False
    """True for a copy of a run that others made."""
    host: str = LOOPBACK
    """The address of the broker."""
    nats: NatsServer | None = field(init=False, default=None)
    postgres: PostgresServer | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        folder = self.job_dir / "infra"
        if self.externals.nats_url is None:
            self.nats = NatsServer(
                folder=folder / "nats",
                secrets=self._secrets,
                port=free_port(self.host),
                monitor_port=free_port(),
                security=self.security.credentials_for("nats"),
                host=self.host,
            )
        if self.externals.postgres_dsn is None:
            self.postgres = embedded_postgres(
                folder / "postgres", self._secrets, free_port(), is_given=self.is_given
            )

    async def start_embedded(self, start: Callable[[ProcessWithProbe], Awaitable[None]]) -> None:
        """Prepares the embedded servers, handing each over as soon as it can start."""
        async with asyncio.TaskGroup() as tasks:
            if self.postgres is not None:
                tasks.create_task(self._prepare_postgres(self.postgres, start))
            if self.nats is not None:
                tasks.create_task(self._prepare_nats(self.nats, start))

    def write_files(self) -> InfrastructureFiles:
        if self.nats is not None:  # for use with the broker's own tools
            self._secrets.write_secret(f"{ADMIN}-nats-url", self.nats.url(ADMIN))
        return InfrastructureFiles(
            buffer_nats_url=self._secrets.write_secret("buffer-nats-url", self._nats_url("buffer")),
            explorer_nats_url=self._secrets.write_secret(
                "explorer-nats-url", self._nats_url("explorer")
            ),
            buffer_postgres_dsn=self._secrets.write_secret(
                "buffer-postgres-dsn", self._postgres_dsn("buffer")
            ),
            synchronizer_postgres_dsn=self._secrets.write_secret(
                "synchronizer-postgres-dsn", self._postgres_dsn("synchronizer")
            ),
        )

    @property
    def public_nats_url(self) -> str:
        return without_user_and_password(self._nats_url("buffer"))

    @property
    def public_postgres_dsn(self) -> str:
        return without_user_and_password(self._postgres_dsn("buffer"))

    @property
    def _secrets(self) -> SecretFiles:
        return SecretFiles(self.job_dir / "infra" / "secrets")

    def _nats_url(self, user: str) -> str:
        return self.nats.url(user) if self.nats else self.externals.nats_url or ""

    def _postgres_dsn(self, role: str) -> str:
        return self.postgres.dsn(role) if self.postgres else self.externals.postgres_dsn or ""

    async def _prepare_postgres(
        self, server: PostgresServer, start: Callable[[ProcessWithProbe], Awaitable[None]]
    ) -> None:
        spec = await asyncio.to_thread(self._prepare_own, server)
        await start(ProcessWithProbe(spec, server.wait_ready, server.is_refusing))

    def _prepare_own(self, server: PostgresServer) -> ProcessSpec:
        """Registers a database before it is made, or when it is trusted."""
        if not self.is_given:
            refuse_given_database(self.job_dir, "use it")
            if not is_registered(server.folder):
                server.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                register_database(server.folder)
        return server.prepare_process(self.job_dir / "log" / "postgres.log")

    async def _prepare_nats(
        self, server: NatsServer, start: Callable[[ProcessWithProbe], Awaitable[None]]
    ) -> None:
        spec = await asyncio.to_thread(server.prepare_process, self.job_dir / "log" / "nats.log")
        await start(ProcessWithProbe(spec, server.wait_ready, server.is_refusing))
