"""A service that meets a schema which it does not know says so in one sentence and ends."""

import asyncio
import os
from dataclasses import dataclass

import psycopg
import pytest

from services.buffer.migrations import MIGRATIONS as BUFFER
from services.synchronizer.__main__ import MIGRATIONS as SYNCHRONIZER
from tests.support.forking.starts import run_module
from tests.support.infra_fixtures import Database
from trinity.runtime.migrations import Migrations

USER_MISTAKE = 2
NEWER = "20991231_newer"


@dataclass(frozen=True, slots=True)
class Store:
    """A service and its part of the database."""

    service: str
    migrations: Migrations
    dsn: str

    async def refusal(self, *, migrates: bool) -> str:
        """The one line with which the service refuses to start."""
        prefix = f"TRINITY_{self.service.upper()}_"
        settings = {"POSTGRES_DSN": self.dsn, "MIGRATE_ON_START": str(migrates).lower()}
        if self.service == "buffer":
            settings["NATS_URL"] = "nats://127.0.0.1:1"
        env = os.environ | {f"{prefix}{name}": value for name, value in settings.items()}
        done = await asyncio.to_thread(run_module, f"services.{self.service}", env=env)
        assert done.returncode == USER_MISTAKE, done.stderr
        (line,) = done.stderr.splitlines()
        return line

    def revisions(self) -> list[str]:
        with psycopg.connect(self.dsn) as connection:
            rows = connection.execute("SELECT version_num FROM alembic_version").fetchall()
        return [str(revision) for (revision,) in rows]

    def set_revision(self, revision: str) -> None:
        with psycopg.connect(self.dsn) as connection:
            connection.execute("UPDATE alembic_version SET version_num = %s", [revision])


@pytest.fixture
def stores(postgres_database: Database) -> list[Store]:
    """Of both services that keep rows."""
    return [
        Store("buffer", BUFFER, postgres_database.buffer_dsn),
        Store("synchronizer", SYNCHRONIZER, postgres_database.synchronizer_dsn),
    ]


async def test_a_schema_of_a_newer_program_is_refused_and_left_as_it_is(
    stores: list[Store],
) -> None:
    for store in stores:
        store.migrations.upgrade(store.dsn)
    known = [store.revisions() for store in stores]
    for store in stores:
        store.set_revision(NEWER)
    refusals = [store.refusal(migrates=migrates) for store in stores for migrates in (True, False)]
    for line in await asyncio.gather(*refusals):
        assert f"is at revision {NEWER}, which this program does not know: install" in line
    assert [store.revisions() for store in stores] == [[NEWER], [NEWER]]
    for store, (revision,) in zip(stores, known, strict=True):
        store.set_revision(revision)
        store.migrations.check_newest(store.dsn)


async def test_a_schema_that_is_missing_is_refused_by_a_service_that_may_not_make_it(
    stores: list[Store], postgres_dsn: str
) -> None:
    with psycopg.connect(postgres_dsn) as connection:
        connection.execute("DROP SCHEMA buffer")  # the other one is there and empty
    lines = await asyncio.gather(*(store.refusal(migrates=False) for store in stores))
    for store, line in zip(stores, lines, strict=True):
        assert f"run `python -m services.{store.service} migrate`" in line


async def test_a_service_that_may_not_make_its_schema_says_who_can(
    stores: list[Store], postgres_dsn: str
) -> None:
    with psycopg.connect(postgres_dsn) as connection:
        connection.execute("DROP SCHEMA buffer")
    line = await stores[0].refusal(migrates=True)
    assert "have its owner run `CREATE SCHEMA buffer AUTHORIZATION <user>`" in line
