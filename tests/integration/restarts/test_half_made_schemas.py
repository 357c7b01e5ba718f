"""Migrations that were killed half way are made again; those of a newer program are refused."""

import asyncio
import os
import signal
from pathlib import Path

import psutil
import psycopg
import pytest

from services.buffer.migrations import MIGRATIONS as BUFFER
from services.synchronizer.__main__ import MIGRATIONS as SYNCHRONIZER
from tests.integration.restarts.clusters import StoresAfter, dsn_of, until_rows
from tests.integration.together.seen import until
from trinity.errors import RunFailed, UserError
from trinity.run.local.stack import LocalStack
from trinity.runtime.migrations import Migrations

HOLD_MIGRATIONS = """
    CREATE FUNCTION hold() RETURNS event_trigger LANGUAGE plpgsql AS
        'BEGIN PERFORM pg_sleep(600); END';
    CREATE EVENT TRIGGER hold ON ddl_command_end WHEN TAG IN ('CREATE INDEX')
        EXECUTE FUNCTION hold()"""
"""When tables are made and the first index as well."""
LET_GO = "DROP EVENT TRIGGER hold"
HELD = "SELECT usename FROM pg_stat_activity WHERE wait_event = 'PgSleep'"
NEWER = "UPDATE synchronizer.alembic_version SET version_num = 'newer'"


async def test_migrations_that_were_killed_half_way_are_made_again(tmp_path: Path) -> None:
    services = StoresAfter(tmp_path, HOLD_MIGRATIONS)
    stack = LocalStack(job_dir=tmp_path, services=services)
    killing = asyncio.create_task(kill_while_held(stack, services))
    with pytest.raises(RunFailed, match="supervisor ended before its launcher"):
        async with stack:
            pass
    await killing
    assert (tmp_path / "infra" / "postgres" / "data" / "postmaster.pid").exists()

    async with LocalStack(job_dir=tmp_path, services=StoresAfter(tmp_path, LET_GO)):
        await until_migrated(BUFFER, dsn_of(tmp_path, "buffer"))
        await until_migrated(SYNCHRONIZER, dsn_of(tmp_path, "synchronizer"))

    refused = "synchronizer refused to start: .* is at revision newer, which this program does not"
    with pytest.raises(UserError, match=refused):
        async with LocalStack(job_dir=tmp_path, services=StoresAfter(tmp_path, NEWER)):
            pass


async def until_migrated(migrations: Migrations, dsn: str) -> None:
    """A stack is up when its services live; these make their schemas before they are of use."""

    async def are_made() -> bool:
        return migrations.is_newest(dsn)

    await until(are_made)
    migrations.check_newest(dsn)


async def kill_while_held(stack: LocalStack, services: StoresAfter) -> None:
    """End everything at once, with both services in the middle of their migrations."""
    await services.are_called.wait()
    async with await psycopg.AsyncConnection.connect(services.dsn, autocommit=True) as session:
        await until_rows(session, HELD, 2)
    supervisor = psutil.Process(stack.pids["postgres"]).ppid()
    for pid in (stack.pids["postgres"], supervisor):
        os.kill(pid, signal.SIGKILL)
