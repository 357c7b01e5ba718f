"""The database's data directory: never half made, never of another version."""

import asyncio
from pathlib import Path

import psycopg
import pytest

from tests.support.infra_fixtures import running
from trinity.errors import UserError
from trinity.run.local.addresses import free_port
from trinity.run.local.binaries import postgres_programs
from trinity.run.local.postgres import PostgresServer
from trinity.runtime.security.secret_files import SecretFiles


def _server(root: Path) -> PostgresServer:
    return PostgresServer(
        folder=root / "server",
        secrets=SecretFiles(root / "secrets"),
        port=free_port(),
        programs=postgres_programs(),
        fsync=False,
    )


async def test_a_cluster_half_made_by_a_crash_is_made_again(tmp_path: Path) -> None:
    server = _server(tmp_path)
    partial = server.folder / "data.partial"
    partial.mkdir(parents=True)
    (partial / "PG_VERSION").write_text("18\n")
    with running(server.prepare_process(tmp_path / "log")):
        await server.wait_ready()
        assert not partial.exists()


async def test_two_may_wait_for_the_same_server(tmp_path: Path) -> None:
    """One that was killed twice in a row is awaited twice, and set up by both."""
    server = _server(tmp_path)
    with running(server.prepare_process(tmp_path / "log")):
        for _ in range(5):
            await asyncio.gather(*(server.wait_ready() for _ in range(8)))


async def test_a_server_that_dies_while_it_is_set_up_is_awaited_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = _server(tmp_path)
    num_calls = 0

    async def cut_off_once(*_: object) -> None:
        nonlocal num_calls
        num_calls += 1
        if num_calls == 1:
            raise psycopg.OperationalError("server closed the connection unexpectedly")

    monkeypatch.setattr("trinity.run.local.postgres.set_up_schemas", cut_off_once)
    with running(server.prepare_process(tmp_path / "log")):
        await server.wait_ready()
    assert num_calls == 2


def test_a_cluster_of_another_version_is_refused_by_name(tmp_path: Path) -> None:
    server = _server(tmp_path)
    server.prepare_process(tmp_path / "log")
    (server.folder / "data" / "PG_VERSION").write_text("16\n")
    with pytest.raises(UserError, match=r"server/data was made by Postgres 16, .* has 18"):
        server.prepare_process(tmp_path / "log")


async def test_a_server_that_outlived_its_launcher_is_replaced(tmp_path: Path) -> None:
    first = _server(tmp_path)
    with running(first.prepare_process(tmp_path / "log")) as survivor:
        await first.wait_ready()
        second = _server(tmp_path)
        with running(second.prepare_process(tmp_path / "log")):
            await second.wait_ready()
            assert survivor.wait(10) == 0


async def test_a_process_number_taken_by_another_program_does_not_stop_the_start(
    tmp_path: Path,
) -> None:
    server = _server(tmp_path)
    server.prepare_process(tmp_path / "log")
    (server.folder / "data" / "postmaster.pid").write_text("1\n")
    with running(server.prepare_process(tmp_path / "log")):
        await server.wait_ready()


async def test_lost_passwords_of_the_services_are_replaced(tmp_path: Path) -> None:
    server = _server(tmp_path)
    with running(server.prepare_process(tmp_path / "log")):
        await server.wait_ready()
        (tmp_path / "secrets" / "postgres-buffer-password").unlink()
        await server.wait_ready()
        with psycopg.connect(server.dsn("buffer")) as buffer:
            assert buffer.execute("SELECT current_user").fetchone() == ("buffer",)


async def test_a_lost_superuser_password_is_named(tmp_path: Path) -> None:
    server = _server(tmp_path)
    with running(server.prepare_process(tmp_path / "log")):
        (tmp_path / "secrets" / "postgres-admin-password").unlink()
        with pytest.raises(UserError, match=f"refuses the password in {tmp_path}/secrets"):
            await server.wait_ready()
