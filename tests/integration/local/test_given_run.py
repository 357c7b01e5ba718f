"""A run's directory that others made: its database executes nothing here that it names."""

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from tests.support.infra_fixtures import running
from trinity.errors import RunFailed, UserError
from trinity.run.local import given_run
from trinity.run.local.addresses import free_port
from trinity.run.local.binaries import postgres_programs
from trinity.run.local.given_run import (
    TRUSTED_VARIABLE,
    copied_run,
    database_box,
    database_folder,
    is_own_database,
    opening_question,
    register_database,
)
from trinity.run.local.infrastructure import ExternalServers
from trinity.run.local.postgres import PostgresServer
from trinity.run.local.stack import LocalStack
from trinity.runtime.process.box import box_refusal
from trinity.runtime.security.secret_files import SUPERUSER, SecretFiles

LOGIN_CODE = """
CREATE FUNCTION owns() RETURNS event_trigger LANGUAGE plpgsql AS $$
BEGIN
    COPY (SELECT 'owned') TO PROGRAM 'tee "{owned}" > /dev/null 2>&1 || true';
END $$;
CREATE EVENT TRIGGER on_login ON login EXECUTE FUNCTION owns();
ALTER EVENT TRIGGER on_login ENABLE ALWAYS;
ALTER ROLE admin SET event_triggers = on;
"""


def server_in(home: Path) -> PostgresServer:
    return PostgresServer(
        folder=database_folder(home),
        secrets=SecretFiles(home / "infra" / "secrets"),
        port=free_port(),
        programs=postgres_programs(),
        fsync=False,
    )


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of a run, with a database that nobody here has made or trusts."""
    monkeypatch.delenv(TRUSTED_VARIABLE)
    home = tmp_path / "run"
    server = server_in(home)
    with running(server.prepare_process(tmp_path / "made.log")):
        pass
    return home


@pytest.fixture
def owned(tmp_path: Path) -> Iterator[Path]:
    """A file that exists once an attack has executed something outside a box."""
    folder = tmp_path / "outside"
    folder.mkdir()
    folder.chmod(0o777)
    tmp_path.chmod(0o755)
    yield folder / "owned"


needs_box = pytest.mark.skipif(
    bool(box_refusal(database_box(Path("/tmp")), str(postgres_programs() / "postgres"), "-V")),
    reason="this machine allows no box",
)


async def logged_in(server: PostgresServer, log: Path, statement: str = "SELECT 1") -> object:
    """The answer of a server that has been started."""
    with running(server.prepare_process(log)):
        await server.wait_ready()
        with psycopg.connect(server.dsn(SUPERUSER), autocommit=True) as connection:
            row = connection.execute(statement.encode()).fetchone()
    return row and row[0]


async def plant_login_trigger(home: Path, owned: Path) -> None:
    server = server_in(home)
    with running(server.prepare_process(home / "planted.log")):
        await server.wait_ready()
        with psycopg.connect(server.dsn(SUPERUSER), autocommit=True) as connection:
            connection.execute(LOGIN_CODE.format(owned=owned).encode())


@needs_box
async def test_code_in_a_catalogue_runs_in_the_box_alone(home: Path, owned: Path) -> None:
    await plant_login_trigger(home, owned)
    secret = owned.with_name("secret")
    plant(secret, "secret")
    with copied_run(home) as copy:
        server = replace(server_in(copy), is_given=True)
        assert await logged_in(server, home / "given.log") == 1
        with pytest.raises(psycopg.Error, match="No such file"):
            await logged_in(server, home / "given.log", f"SELECT pg_read_file('{secret}')")
        listed = await logged_in(server, home / "given.log", "SELECT current_setting('port')")
        assert listed == str(server.port)
    assert content_of(owned) == ""


async def test_control_without_the_box_it_runs_here(home: Path, owned: Path) -> None:
    await plant_login_trigger(home, owned)
    await logged_in(server_in(home), home / "given.log")
    assert content_of(owned) == "owned\n"


async def test_control_a_restore_command_is_executed_where_a_database_is_opened_as_it_is(
    home: Path, owned: Path
) -> None:
    data = database_folder(home) / "data"
    plant(data / "postgresql.auto.conf", f"restore_command = 'echo owned > {owned}; false'\n")
    plant(data / "recovery.signal", "")
    server = server_in(home)
    spec = server.prepare_process(home / "given.log")
    with pytest.raises(RunFailed), running(spec):
        await server.wait_ready(10.0)
    assert content_of(owned) == "owned\n"


@pytest.mark.parametrize(
    "name", ["recovery.signal", "standby.signal", "backup_label", "tablespace_map"]
)
def test_a_database_that_would_recover_is_refused(home: Path, name: str) -> None:
    plant(database_folder(home) / "data" / name, "")
    with pytest.raises(UserError, match=rf"{name} is in no database of a run"), copied_run(home):
        pytest.fail("it was copied")


@pytest.mark.parametrize("link", ["pg_tblspc/16400", "pg_wal", "base/1/1259", "postgresql.conf"])
def test_links_in_a_database_are_refused(home: Path, tmp_path: Path, link: str) -> None:
    path, elsewhere = database_folder(home) / "data" / link, tmp_path / "elsewhere"
    if path.is_dir():
        shutil.move(path, elsewhere)
    path.unlink(missing_ok=True)
    path.symlink_to(elsewhere)
    with pytest.raises(UserError, match=rf"{link} is in no database of a run"), copied_run(home):
        pytest.fail("it was copied")


@needs_box
async def test_settings_of_a_given_database_are_not_read(home: Path) -> None:
    plant(database_folder(home) / "data" / "postgresql.auto.conf", "deadlock_timeout = '77s'\n")
    control = await logged_in(server_in(home), home / "own.log", "SHOW deadlock_timeout")
    assert control == "77s"
    with copied_run(home) as copy:
        server = replace(server_in(copy), is_given=True)
        assert await logged_in(server, home / "given.log", "SHOW deadlock_timeout") == "1s"


def test_only_a_directory_that_was_made_here_is_ones_own(home: Path, tmp_path: Path) -> None:
    folder = database_folder(home)
    assert not is_own_database(folder)
    assert "It is opened as a copy" in opening_question(home)
    register_database(folder)
    assert is_own_database(folder)
    assert opening_question(home) == ""
    moved = home.rename(tmp_path / "moved")
    assert is_own_database(database_folder(moved))
    copied = shutil.copytree(moved, tmp_path / "copied")  # with the mark and its times
    assert not is_own_database(database_folder(copied))
    mark = database_folder(moved) / given_run.MARK
    mark.write_text(mark.read_text())
    assert not is_own_database(database_folder(moved))
    mark.unlink()
    mark.symlink_to("/etc/passwd")
    assert not is_own_database(database_folder(moved))
    assert is_own_database(tmp_path / "none")


def test_folders_that_a_user_names_are_trusted(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TRUSTED_VARIABLE, f"{home.parent}x{os.pathsep}{home}")
    assert is_own_database(database_folder(home))
    monkeypatch.setenv(TRUSTED_VARIABLE, f"{home}x")
    assert not is_own_database(database_folder(home))


async def test_a_run_does_not_go_on_in_a_directory_that_others_made(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match=f"{TRUSTED_VARIABLE}={home}"):
        async with LocalStack(job_dir=home, externals=ExternalServers(), services=lambda _: []):
            pytest.fail("it was started")
    monkeypatch.setenv(TRUSTED_VARIABLE, str(home))
    async with LocalStack(job_dir=home, externals=ExternalServers(), services=lambda _: []):
        monkeypatch.delenv(TRUSTED_VARIABLE)
    async with LocalStack(job_dir=home, externals=ExternalServers(), services=lambda _: []):
        assert is_own_database(database_folder(home))


def test_where_no_box_can_be_made_a_given_database_is_refused(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(given_run, "box_refusal", lambda *_: "not here")
    with (
        pytest.raises(UserError, match=r"allows no box around its database \(not here\)"),
        copied_run(home),
    ):
        pytest.fail("it was copied")


def content_of(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def plant(path: Path, text: str) -> None:
    """Writes a file of the database's user."""
    path.write_text(text)
    owner = path.parent.stat()
    os.chown(path, owner.st_uid, owner.st_gid)
