"""The embedded database: its settings, its process, and the services' roles and schemas."""

import asyncio
import contextlib
import logging
import os
import select
import shutil
import signal
import subprocess
import urllib.parse
from dataclasses import dataclass
from pathlib import Path

import psycopg
from psycopg import sql

from trinity.errors import RunFailed, UserError
from trinity.run.local import binaries
from trinity.run.local.given_run import database_box
from trinity.run.local.process_spec import ProcessSpec
from trinity.runtime.process.box import Box
from trinity.runtime.process.child_process import Identity, database_identity
from trinity.runtime.security.secret_files import DATABASE, SUPERUSER, SecretFiles, write_private

logger = logging.getLogger(__name__)


SCHEMA_OWNERS = ("buffer", "synchronizer")
_ALGORITHM = b"scram-sha-256"
"""Passwords are sent hashed: a failed statement is written to the database's log."""
_MAJOR_VERSION = "18"
_INITDB_SECONDS = 120.0
_STALE_SERVER_MILLISECONDS = 10_000
_WRONG_PASSWORD = "password authentication failed"  # the client has no error class for it
_IS_NOT_UP_YET = "FATAL:  the database system is"  # nor for starting and recovering
_PAUSE_SECONDS = 0.02
_LONG_PAUSE_SECONDS = 0.5
"""Limits log growth: each answer is a line in the database's log."""
_SAID_EVERY_SECONDS = 10.0
MIN_WAL_MEBIBYTES, MAX_WAL_MEBIBYTES = 128, 2048
_ENVIRONMENT = {"LC_ALL": "C"}
_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",  # TCP only: no path to keep short or to clean up
    "max_connections": "100",
    "shared_buffers": "256MB",
    "work_mem": "16MB",
    "maintenance_work_mem": "128MB",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "checkpoint_timeout": "15min",
    "synchronous_commit": "on",
    "autovacuum_naptime": "10s",
    "max_parallel_workers_per_gather": "0",
    "io_method": "sync",  # its default starts three more processes
    "jit": "off",
    "timezone": "UTC",
    "log_timezone": "UTC",
}


async def set_up_roles(connection: psycopg.AsyncConnection, passwords: dict[str, str]) -> None:
    """Creates missing roles and sets the passwords; needs a superuser in autocommit mode.

    Postgres cannot change one role twice concurrently: the lock is held as long as the connection.
    """
    await connection.execute("SELECT pg_advisory_lock(hashtext('trinity roles'))")
    for role, password in passwords.items():
        await _ensure_role(connection, role, password)
    exists = await connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [DATABASE])
    if await exists.fetchone() is None:
        await connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(DATABASE)))
    await connection.execute("REVOKE CONNECT ON DATABASE postgres FROM PUBLIC")
    await connection.execute("REVOKE CONNECT ON DATABASE template1 FROM PUBLIC")


async def set_up_schemas(connection: psycopg.AsyncConnection) -> None:
    """Creates each role's schema in the connected database, without access for other roles."""
    await connection.execute("REVOKE ALL ON SCHEMA public FROM PUBLIC")
    database = sql.Identifier(connection.info.dbname)
    await connection.execute(sql.SQL("REVOKE ALL ON DATABASE {} FROM PUBLIC").format(database))
    for role in SCHEMA_OWNERS:
        name = sql.Identifier(role)
        grant = sql.SQL("GRANT CONNECT ON DATABASE {} TO {}").format(database, name)
        await connection.execute(grant)
        await connection.execute(
            sql.SQL("CREATE SCHEMA IF NOT EXISTS {} AUTHORIZATION {}").format(name, name)
        )


async def _ensure_role(connection: psycopg.AsyncConnection, role: str, password: str) -> None:
    name = sql.Identifier(role)
    verifier = connection.pgconn.encrypt_password(password.encode(), role.encode(), _ALGORITHM)
    exists = await connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [role])
    verb = "CREATE" if await exists.fetchone() is None else "ALTER"
    await connection.execute(
        sql.SQL(
            "{} ROLE {} LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS "
            "PASSWORD {}"
        ).format(sql.SQL(verb), name, sql.Literal(verifier.decode()))
    )
    await connection.execute(sql.SQL("ALTER ROLE {} SET search_path = {}").format(name, name))


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresServer:
    """A Postgres server whose cluster is in `<folder>/data`."""

    folder: Path
    secrets: SecretFiles
    port: int
    programs: Path
    fsync: bool = True
    is_given: bool = False
    """True for a copy of a database that others made: its program runs in a box, and is reached
    over a socket in its folder."""

    def prepare_process(self, log_file: Path) -> ProcessSpec:
        """Makes sure that a complete cluster exists and returns the process to start."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        identity = self._identity()
        if self._data.exists():
            self._check_version()
            self._end_stale_server()
        else:
            self._initialise(identity)
        return ProcessSpec(
            name="postgres",
            argv=identity.command(self._server_argv(), death_signal=self._death_signal),
            log_file=log_file,
            env=_ENVIRONMENT,
            stop_signal=signal.SIGINT,  # ends sessions; SIGTERM would wait for the clients
            stop_grace_seconds=15.0,
        )

    def dsn(self, role: str, database: str = DATABASE) -> str:
        password = self.secrets.password(f"postgres-{role}")
        if self.is_given:
            place = urllib.parse.urlencode({"host": str(self._sockets), "port": self.port})
            return f"postgresql://{role}:{password}@/{database}?{place}"
        return f"postgresql://{role}:{password}@127.0.0.1:{self.port}/{database}"

    async def wait_ready(self, timeout_seconds: float = 60.0) -> None:
        """Returns when the database answers and the services' accounts exist.

        While it reports that it is starting, the timeout does not run: after a crash it replays its
        log, which takes minutes on a slow disk. If it dies meanwhile, the supervisor reports that.
        """
        while True:
            async with await self._connect_when_up(timeout_seconds) as connection:
                try:
                    return await self._set_up(connection)
                except psycopg.OperationalError as error:
                    logger.warning("the database went away again", extra={"why": str(error)})

    def is_refusing(self) -> bool:
        """True once a SIGTERM has come: new clients are refused until all others have left."""
        try:
            return self._pid_file.read_text().rstrip().endswith("stopping")
        except OSError:
            return False

    async def _set_up(self, connection: psycopg.AsyncConnection) -> None:
        passwords = {role: self.secrets.password(f"postgres-{role}") for role in SCHEMA_OWNERS}
        await set_up_roles(connection, passwords)
        superuser = self.dsn(SUPERUSER)
        async with await psycopg.AsyncConnection.connect(superuser, autocommit=True) as own:
            await set_up_schemas(own)

    def _identity(self) -> Identity | Box:
        if not self.is_given:
            return database_identity(self.programs, self.folder)
        box = database_box(self.folder)
        self._sockets.mkdir(mode=0o700, exist_ok=True)
        os.chown(self._sockets, *box.owner)
        return box

    @property
    def _death_signal(self) -> int:
        """Code in a box may ignore SIGQUIT."""
        return signal.SIGKILL if self.is_given else signal.SIGQUIT

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    @property
    def _pid_file(self) -> Path:
        return self._data / "postmaster.pid"

    @property
    def _sockets(self) -> Path:
        return self.folder / "sockets"

    def _server_argv(self) -> list[str]:
        settings = _SETTINGS | {
            "port": str(self.port),
            "fsync": "on" if self.fsync else "off",
            "max_wal_size": f"{_wal_mebibytes(self.folder)}MB",
        }
        if self.is_given:
            settings |= {"listen_addresses": "", "unix_socket_directories": str(self._sockets)}
            settings |= {"event_triggers": "off", "restore_command": "", "shared_buffers": "64MB"}
        argv = [str(self.programs / "postgres"), "-D", str(self._data)]
        for name, value in settings.items():
            argv += ["-c", f"{name}={value}"]
        return argv

    def _initialise(self, identity: Identity | Box) -> None:
        """Creates the cluster under another name, so that `data` is never half a cluster."""
        partial = self.folder / "data.partial"
        shutil.rmtree(partial, ignore_errors=True)
        password_file = self.folder / "initial-password"
        write_private(password_file, self.secrets.password(f"postgres-{SUPERUSER}"))
        with contextlib.suppress(OSError):
            os.chown(password_file, *identity.owner)
        try:
            self._run_initdb(identity, partial, password_file)
        finally:
            password_file.unlink()
        partial.rename(self._data)

    def _run_initdb(self, identity: Identity | Box, data: Path, password_file: Path) -> None:
        argv = [str(self.programs / "initdb"), "-D", str(data), "-U", SUPERUSER]
        argv += ["--auth=scram-sha-256", f"--pwfile={password_file}", "-E", "UTF8", "--locale=C"]
        if not self.fsync:
            argv.append("--no-sync")
        outcome = subprocess.run(
            identity.command(argv, death_signal=signal.SIGKILL),
            env=os.environ | _ENVIRONMENT,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=_INITDB_SECONDS,
        )
        if outcome.returncode != 0:
            raise RunFailed(f"The database could not be created in {data}: {outcome.stderr}")

    def _check_version(self) -> None:
        path = self._data / "PG_VERSION"
        try:
            version = path.read_text().strip()
        except FileNotFoundError as error:
            raise UserError(
                f"The database in {self._data} is damaged ({path.name} is missing): put a copy in "
                f"its place, or delete {self._data} to start over"
            ) from error
        if version != _MAJOR_VERSION:
            raise UserError(
                f"The database in {self._data} was made by Postgres {version}, this installation "
                f"has {_MAJOR_VERSION}: start in another directory, or delete it to start over"
            )

    def _end_stale_server(self) -> None:
        """Stops a server that outlived its launcher; Postgres itself handles a mere leftover file.

        If the file is truncated, or the recorded process number now belongs to another program,
        Postgres would suspect a running predecessor and refuse to start: the file is deleted.
        """
        pid_file = self._pid_file
        if not pid_file.exists():
            return
        recorded = pid_file.read_text().partition("\n")[0]
        pid = int(recorded) if recorded.isdecimal() else 0
        try:
            arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0") if pid else []
        except (FileNotFoundError, ProcessLookupError):
            return
        if str(self._data).encode() not in arguments:
            pid_file.unlink()
            return
        descriptor = os.pidfd_open(pid)
        try:
            signal.pidfd_send_signal(descriptor, signal.SIGQUIT)
            _wait_for_end(descriptor)
        finally:
            os.close(descriptor)

    async def _connect_when_up(self, timeout_seconds: float) -> psycopg.AsyncConnection:
        superuser = self.dsn(SUPERUSER, "postgres")
        loop = asyncio.get_running_loop()
        deadline, logged_at, pause = loop.time() + timeout_seconds, loop.time(), _PAUSE_SECONDS
        while True:
            try:
                return await psycopg.AsyncConnection.connect(
                    superuser, autocommit=True, connect_timeout=5
                )
            except psycopg.OperationalError as error:
                if _WRONG_PASSWORD in str(error):
                    raise UserError(
                        f"The database in {self._data} refuses the password in "
                        f"{self.secrets.folder}; put the file back or delete {self.folder} to "
                        f"start over"
                    ) from error
                now, is_starting = loop.time(), _IS_NOT_UP_YET in str(error)
                if is_starting:
                    deadline = now + timeout_seconds
                elif now > deadline:
                    raise RunFailed(f"The database did not answer: {error}") from error
                if is_starting and now > logged_at + _SAID_EVERY_SECONDS:
                    logger.warning("the database starts and takes no connections yet")
                    logged_at, pause = now, _LONG_PAUSE_SECONDS
                await asyncio.sleep(pause)


def embedded_postgres(
    folder: Path, secrets: SecretFiles, port: int, *, is_given: bool = False
) -> PostgresServer:
    """Returns the server that the pip package ships."""
    programs = binaries.postgres_programs()
    return PostgresServer(
        folder=folder, secrets=secrets, port=port, programs=programs, is_given=is_given
    )


def _wait_for_end(process_descriptor: int) -> None:
    """Waits until another process ends; kills it when that takes too long."""
    end = select.poll()
    end.register(process_descriptor, select.POLLIN)
    if not end.poll(_STALE_SERVER_MILLISECONDS):
        signal.pidfd_send_signal(process_descriptor, signal.SIGKILL)
        end.poll(_STALE_SERVER_MILLISECONDS)


def _wal_mebibytes(folder: Path) -> int:
    """Returns how large the log of changes may get: an eighth of the free disk, within bounds."""
    eighth = shutil.disk_usage(folder).free // 8 // 2**20
    return min(MAX_WAL_MEBIBYTES, max(MIN_WAL_MEBIBYTES, eighth))
