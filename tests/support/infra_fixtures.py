"""Fixtures with a real broker and a real database; both start once a session, in milliseconds."""

import asyncio
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import psutil
import psycopg
import pytest
from psycopg import sql

from trinity.run.local.addresses import free_port
from trinity.run.local.binaries import postgres_programs
from trinity.run.local.nats import NatsServer
from trinity.run.local.postgres import SCHEMA_OWNERS, PostgresServer
from trinity.run.local.process_spec import ProcessSpec
from trinity.runtime.security.broker import ADMIN
from trinity.runtime.security.secret_files import DATABASE, SUPERUSER, SecretFiles

_names = count(1)


def spawn(spec: ProcessSpec) -> subprocess.Popen[bytes]:
    """Start one process of the stack without a supervisor."""
    with spec.log_file.open("ab") as log:
        return subprocess.Popen(
            spec.argv,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=os.environ | spec.env,
        )


@contextmanager
def running(spec: ProcessSpec) -> Iterator[subprocess.Popen[bytes]]:
    """Run one process of the stack; it dies with the test session."""
    process = spawn(spec)
    try:
        yield process
    finally:
        process.send_signal(spec.stop_signal)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    """A database server of this test session, with the product's roles and schemas."""
    root = tmp_path_factory.mktemp("postgres")
    server = PostgresServer(
        folder=root / "server",
        secrets=SecretFiles(root / "secrets"),
        port=free_port(),
        programs=postgres_programs(),
        fsync=False,
    )
    with running(server.prepare_process(root / "postgres.log")):
        asyncio.run(server.wait_ready())
        yield server


@dataclass(frozen=True, slots=True)
class Database:
    """A fresh database with the schemas of the services that store rows."""

    server: PostgresServer
    name: str

    @property
    def admin_dsn(self) -> str:
        return self.server.dsn(SUPERUSER, self.name)

    @property
    def buffer_dsn(self) -> str:
        return self.server.dsn("buffer", self.name)

    @property
    def synchronizer_dsn(self) -> str:
        return self.server.dsn("synchronizer", self.name)


@pytest.fixture
def postgres_database(postgres_server: PostgresServer) -> Iterator[Database]:
    """A database of this test's own, a copy of the one that the launcher makes."""
    database = Database(postgres_server, f"test_{next(_names)}")
    name, template = sql.Identifier(database.name), sql.Identifier(DATABASE)
    maintenance = postgres_server.dsn(SUPERUSER, "postgres")
    with psycopg.connect(maintenance, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(name, template))
        for role in SCHEMA_OWNERS:  # a copy has the schemas' rights and not the database's
            grant = sql.SQL("GRANT CONNECT ON DATABASE {} TO {}")
            connection.execute(grant.format(name, sql.Identifier(role)))
        connection.execute(sql.SQL("REVOKE ALL ON DATABASE {} FROM PUBLIC").format(name))
        yield database
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(name))


@pytest.fixture
def postgres_dsn(postgres_database: Database) -> str:
    """The superuser's address of a fresh database."""
    return postgres_database.admin_dsn


@pytest.fixture
def buffer_dsn(postgres_database: Database) -> str:
    """The address that the buffer gets: its own role, its own schema, a fresh database."""
    return postgres_database.buffer_dsn


@pytest.fixture
def synchronizer_dsn(postgres_database: Database) -> str:
    """The address that the synchronizer gets; the same database as `buffer_dsn` in one test."""
    return postgres_database.synchronizer_dsn


@dataclass(slots=True)
class RestartablePostgres:
    """A database server of one test."""

    server: PostgresServer
    log_file: Path
    process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        self.process = spawn(self.server.prepare_process(self.log_file))
        await self.server.wait_ready()

    def stop(self) -> None:
        """End every session at once."""
        assert self.process is not None
        self.process.send_signal(signal.SIGQUIT)
        self.process.wait()
        self.process = None

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the server and all its sessions."""
        assert self.process is not None
        server = psutil.Process(self.process.pid)
        for process in (server, *server.children(recursive=True)):
            process.send_signal(number)


@pytest.fixture
async def restartable_postgres(tmp_path: Path) -> AsyncIterator[RestartablePostgres]:
    server = PostgresServer(
        folder=tmp_path / "server",
        secrets=SecretFiles(tmp_path / "secrets"),
        port=free_port(),
        programs=postgres_programs(),
        fsync=False,
    )
    postgres = RestartablePostgres(server, tmp_path / "postgres.log")
    await postgres.start()
    yield postgres
    if postgres.process is not None:
        postgres.stop()


@dataclass(slots=True)
class NatsUnderTest:
    """A broker of one test, which may kill and start it again on the same port and data."""

    server: NatsServer
    log_file: Path
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The address with all rights."""
        return self.server.url(ADMIN)

    @property
    def buffer_url(self) -> str:
        """The address that may keep the stream of results and take from it."""
        return self.server.url("buffer")

    @property
    def explorer_url(self) -> str:
        """The address that may only publish results."""
        return self.server.url("explorer")

    async def start(self) -> None:
        spec = self.server.prepare_process(self.log_file)
        self.process = spawn(spec)
        await self.server.wait_ready()

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


@pytest.fixture
async def nats_server(tmp_path: Path) -> AsyncIterator[NatsUnderTest]:
    """A fresh broker with an empty store."""
    server = NatsServer(
        folder=tmp_path / "nats",
        secrets=SecretFiles(tmp_path / "nats-secrets"),
        port=free_port(),
        monitor_port=free_port(),
    )
    broker = NatsUnderTest(server, tmp_path / "nats.log")
    try:
        await broker.start()
        yield broker
    finally:
        broker.kill()


@pytest.fixture
def nats_url(nats_server: NatsUnderTest) -> str:
    """The address of a fresh broker, with all rights."""
    return nats_server.url
