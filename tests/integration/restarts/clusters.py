"""The embedded database of a directory, as a test gets at it before and after a stack does."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import LiteralString

import psycopg

from tests.integration.local.stacks import no_services
from tests.integration.together.seen import PATIENCE_SECONDS, until
from trinity.run.local.addresses import free_port
from trinity.run.local.infrastructure import ProcessWithProbe
from trinity.run.local.postgres import PostgresServer, embedded_postgres
from trinity.run.local.services import StackContext, service_processes
from trinity.run.local.stack import LocalStack
from trinity.runtime.security.secret_files import SUPERUSER, SecretFiles

PAUSE_SECONDS = 0.002
ROLES = ("buffer", "synchronizer")


def cluster_in(job_dir: Path, port: int = 0) -> PostgresServer:
    """The database that a stack in this directory starts, or has started on that port."""
    infra = job_dir / "infra"
    secrets = SecretFiles(infra / "secrets")
    return embedded_postgres(infra / "postgres", secrets, port or free_port())


def dsn_of(job_dir: Path, role: str) -> str:
    """What a service was given."""
    return (job_dir / "infra" / "secrets" / f"{role}-postgres-dsn").read_text()


class StoresAfter:
    """The two services that keep rows, started after a superuser's statement."""

    def __init__(self, job_dir: Path, statement: LiteralString) -> None:
        self._job_dir = job_dir
        self._statement = statement
        self.are_called = asyncio.Event()
        self.dsn = ""
        """The superuser's, once they are called."""

    def __call__(self, around: StackContext) -> list[ProcessWithProbe]:
        port = int(around.addresses.postgres_dsn.rpartition(":")[2].partition("/")[0])
        dsn = cluster_in(self._job_dir, port).dsn(SUPERUSER)
        with psycopg.connect(dsn) as connection:
            connection.execute(self._statement)
        self.dsn = dsn
        self.are_called.set()
        return [one for one in service_processes(around) if one.spec.name in ROLES]


async def check_it_comes_up(job_dir: Path) -> None:
    """Each service's role works in its schema."""
    async with LocalStack(job_dir=job_dir, services=no_services):
        for role in ROLES:
            with psycopg.connect(dsn_of(job_dir, role)) as connection:
                found = connection.execute("SELECT current_schema(), current_user").fetchone()
            assert found == (role, role)


async def connect_when_up(server: PostgresServer, database: str) -> psycopg.AsyncConnection:
    """A superuser's session."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            try:
                return await psycopg.AsyncConnection.connect(
                    server.dsn(SUPERUSER, database), autocommit=True
                )
            except psycopg.OperationalError:
                await asyncio.sleep(PAUSE_SECONDS)


async def until_rows(session: psycopg.AsyncConnection, query: LiteralString, number: int) -> None:
    """Wait until the query finds so many."""

    async def are_there() -> bool:
        return len(await (await session.execute(query)).fetchall()) >= number

    await until(are_there)


def wait_until(holds: Callable[[], bool]) -> None:
    """Look again and again, in short intervals."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(PAUSE_SECONDS)
