"""One running buffer for all tests, and one of its own for a test that breaks things."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from tests.integration.buffer.harness import Buffer, talk_to
from tests.integration.buffer.looking import Looking
from tests.integration.buffer.plans import ROWS
from tests.integration.buffer.process import BufferProcess
from tests.support.infra_fixtures import running
from trinity.client import AsyncTasksets
from trinity.run.local.addresses import free_port
from trinity.run.local.nats import NatsServer
from trinity.run.local.postgres import PostgresServer
from trinity.runtime.rpc.channel import open_channel
from trinity.runtime.security.broker import ADMIN
from trinity.runtime.security.secret_files import DATABASE, SUPERUSER, SecretFiles

SHARED = "shared_by_buffer_tests"
KILLED = "of_the_killed_buffer"
OF_USERS = "of_users_functions"
LIMIT_SECONDS = 0.5
"""That a user's function may take."""
MEMORY_BYTES = 512 * 1024**2

_numbers = count(1)


@pytest.fixture(scope="package")
def shared_nats_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker of this package, with all rights."""
    with _broker_in(tmp_path_factory.mktemp("buffer-nats")) as url:
        yield url


@contextmanager
def _broker_in(root: Path) -> Iterator[str]:
    server = NatsServer(
        folder=root / "data",
        secrets=SecretFiles(root / "secrets"),
        port=free_port(),
        monitor_port=free_port(),
    )
    with running(server.prepare_process(root / "nats.log")):
        asyncio.run(server.wait_ready())
        yield server.url(ADMIN)


@pytest.fixture(scope="package")
def shared_dsn(postgres_server: PostgresServer) -> Iterator[str]:
    """A database of this package."""
    with _database(postgres_server, SHARED) as dsn:
        yield dsn


@contextmanager
def _database(server: PostgresServer, database: str) -> Iterator[str]:
    name, template = sql.Identifier(database), sql.Identifier(DATABASE)
    maintenance = server.dsn(SUPERUSER, "postgres")
    with psycopg.connect(maintenance, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(name, template))
        yield server.dsn("buffer", database)
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(name))


@pytest.fixture(scope="package")
def process(
    shared_dsn: str, shared_nats_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BufferProcess]:
    """`python -m services.buffer`, ready; experiments in it do not meet."""
    log_file = tmp_path_factory.mktemp("buffer") / "buffer.log"
    started = BufferProcess(shared_dsn, shared_nats_url, log_file)
    try:
        asyncio.run(started.start())
        yield started
    finally:
        started.kill()


@pytest.fixture(scope="package")
def killed_process(
    postgres_server: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BufferProcess]:
    """One that tests kill; each step's rows are a partition of their own."""
    root = tmp_path_factory.mktemp("killed-buffer")
    extra = {"TRINITY_BUFFER_SEGMENT_MAX_ROWS": str(ROWS)}
    with _broker_in(root) as nats_url, _database(postgres_server, KILLED) as dsn:
        process = BufferProcess(dsn, nats_url, root / "buffer.log", extra)
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
async def retaining_process(killed_process: BufferProcess) -> AsyncIterator[BufferProcess]:
    """It is up when a test begins, which may kill it and change its settings."""
    usual = dict(killed_process.extra)
    if not killed_process.is_up:
        await killed_process.start()
    yield killed_process
    if killed_process.extra != usual:
        killed_process.extra = usual
        killed_process.kill()


@dataclass(frozen=True, slots=True)
class UsersModule:
    """Where a test writes a user's functions; the buffer finds it by its name."""

    folder: Path
    name: str

    def write(self, source: str) -> None:
        (self.folder / f"{self.name}.py").write_text(source)


@pytest.fixture(scope="package")
def users_process(
    postgres_server: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BufferProcess]:
    """A buffer that finds users' modules, and soon has enough of what they do."""
    root = tmp_path_factory.mktemp("users-buffer")
    (root / "modules").mkdir()
    extra = {
        "PYTHONPATH": str(root / "modules"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "TRINITY_BUFFER_ADVANTAGE_SECONDS": str(LIMIT_SECONDS),
        "TRINITY_BUFFER_FUNCTION_MEMORY_BYTES": str(MEMORY_BYTES),
    }
    with _broker_in(root) as nats_url, _database(postgres_server, OF_USERS) as dsn:
        process = BufferProcess(dsn, nats_url, root / "buffer.log", extra)
        try:
            asyncio.run(process.start())
            yield process
        finally:
            process.kill()


@pytest.fixture
def users_module(users_process: BufferProcess) -> UsersModule:
    """One of this test's own."""
    return UsersModule(Path(users_process.extra["PYTHONPATH"]), f"users_module_{next(_numbers)}")


@pytest.fixture
async def users_buffer(users_process: BufferProcess) -> AsyncIterator[Buffer]:
    """Calls on that buffer."""
    async with talk_to(users_process) as calls:
        yield calls


@pytest.fixture
async def buffer(process: BufferProcess) -> AsyncIterator[Buffer]:
    """Calls for an experiment of its own."""
    async with talk_to(process) as calls:
        yield calls


@pytest.fixture
async def looking(process: BufferProcess, buffer: Buffer) -> AsyncIterator[Looking]:
    """Questions about that experiment."""
    async with open_channel(process.address) as channel:
        yield Looking.on(channel, buffer.pb_key)


@pytest.fixture
async def tasksets(process: BufferProcess) -> AsyncIterator[AsyncTasksets]:
    """A client that brings tasks."""
    async with AsyncTasksets(process.address) as calls:
        yield calls


@pytest.fixture
def own_settings() -> dict[str, str]:
    """What `own_process` is started with; a module may have its own."""
    return {}


@pytest.fixture
async def own_process(
    buffer_dsn: str, nats_url: str, tmp_path: Path, own_settings: dict[str, str]
) -> AsyncIterator[BufferProcess]:
    """A buffer with its own broker and database, which the test may kill."""
    log_file = tmp_path / "buffer.log"
    async with BufferProcess(buffer_dsn, nats_url, log_file, own_settings) as started:
        yield started


@pytest.fixture
async def own_buffer(own_process: BufferProcess) -> AsyncIterator[Buffer]:
    """Calls on that one."""
    async with talk_to(own_process) as calls:
        yield calls
