"""One running buffer for all tests, and one of its own for a test that breaks things."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from tests.integration.buffer.harness import Buffer, talk_to
from tests.integration.buffer.looking import Looking
from tests.integration.buffer.process import BufferProcess
from tests.support.infra_fixtures import running
from trinity.client import AsyncTasksets
from trinity.local.addresses import free_port
from trinity.local.nats import NatsServer
from trinity.local.postgres import DATABASE, SUPERUSER, PostgresServer
from trinity.rpc.channel import open_channel
from trinity.security.broker import ADMIN
from trinity.security.secret_files import SecretFiles

SHARED = "shared_by_buffer_tests"


@pytest.fixture(scope="session")
def shared_nats_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker of this session, with all rights."""
    root = tmp_path_factory.mktemp("buffer-nats")
    server = NatsServer(
        folder=root / "data",
        secrets=SecretFiles(root / "secrets"),
        port=free_port(),
        monitor_port=free_port(),
    )
    with running(server.prepare_process(root / "nats.log")):
        asyncio.run(server.wait_ready())
        yield server.url(ADMIN)


@pytest.fixture(scope="session")
def shared_dsn(postgres_server: PostgresServer) -> Iterator[str]:
    """A database of this session."""
    name, template = sql.Identifier(SHARED), sql.Identifier(DATABASE)
    maintenance = postgres_server.dsn(SUPERUSER, "postgres")
    with psycopg.connect(maintenance, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(name, template))
        yield postgres_server.dsn("buffer", SHARED)
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(name))


@pytest.fixture(scope="session")
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
