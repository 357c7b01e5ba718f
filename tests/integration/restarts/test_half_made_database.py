"""A start on a directory whose database was left half made comes up, or says what to do."""

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.local.stacks import no_services
from tests.integration.restarts import launcher
from tests.integration.restarts.clusters import (
    check_it_comes_up,
    cluster_in,
    connect_when_up,
    until_rows,
    wait_until,
)
from tests.support.infra_fixtures import running
from trinity.errors import RunFailed, UserError
from trinity.run.local.stack import LocalStack

REPOSITORY = Path(__file__).parents[3]


async def test_a_start_killed_while_the_cluster_is_made_is_made_good(tmp_path: Path) -> None:
    folder = tmp_path / "infra" / "postgres"
    kill_while_the_cluster_is_made(tmp_path, folder)
    await check_it_comes_up(tmp_path)
    assert not (folder / "data.partial").exists()


def kill_while_the_cluster_is_made(job_dir: Path, folder: Path) -> None:
    command = [sys.executable, "-m", launcher.__name__, str(job_dir)]
    with subprocess.Popen(command, cwd=REPOSITORY) as process:
        wait_until((folder / "data.partial" / "base").exists)
        process.kill()
    assert not (folder / "data").exists()


async def test_a_start_killed_before_the_database_is_made_is_made_good(tmp_path: Path) -> None:
    """A session on the template keeps `CREATE DATABASE` waiting; the roles are there by then."""
    server = cluster_in(tmp_path)
    with running(server.prepare_process(tmp_path / "postgres.log")) as process:
        session = await connect_when_up(server, "template1")
        making = asyncio.create_task(server.wait_ready())
        creating = "SELECT 1 FROM pg_stat_activity WHERE query LIKE 'CREATE DATABASE%'"
        await until_rows(session, creating, 1)
        process.kill()
        process.wait()
        making.cancel()
        await asyncio.gather(making, return_exceptions=True)
        await session.close()
    await check_it_comes_up(tmp_path)


async def test_a_start_killed_before_the_schemas_are_made_is_made_good(tmp_path: Path) -> None:
    server = cluster_in(tmp_path)
    with running(server.prepare_process(tmp_path / "postgres.log")):
        session = await connect_when_up(server, "postgres")
        await session.execute("CREATE DATABASE trinity")
        await session.execute("CREATE ROLE buffer")  # without its password
        await session.close()
    secret = tmp_path / "infra" / "secrets" / "postgres-synchronizer-password"
    for cut_short in (server.folder / "data" / "postmaster.pid", secret):
        cut_short.write_text("")
    await check_it_comes_up(tmp_path)


async def test_a_damaged_cluster_is_named_with_what_to_do(tmp_path: Path) -> None:
    server = cluster_in(tmp_path)
    server.prepare_process(tmp_path / "postgres.log")
    data = server.folder / "data"
    control = data / "global" / "pg_control"
    whole = control.read_bytes()
    os.truncate(control, 100)
    remedy = f"put a copy of {server.folder} in its place, or delete it to start over"
    sentence = rf"PANIC: .*pg_control.*; if the database is damaged, {re.escape(remedy)}$"
    with pytest.raises(RunFailed, match=sentence):
        async with LocalStack(job_dir=tmp_path, services=no_services, max_restarts=0):
            pass
    control.write_bytes(whole)
    (data / "PG_VERSION").unlink()
    remedy = f"put a copy in its place, or delete {data} to start over"
    sentence = rf"is damaged \(PG_VERSION is missing\): {re.escape(remedy)}$"
    with pytest.raises(UserError, match=sentence):
        async with LocalStack(job_dir=tmp_path, services=no_services):
            pass
