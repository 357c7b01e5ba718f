"""The database and the broker as they stand on hosts of their own: TLS for everybody."""

import asyncio
import os
import shutil
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

import psycopg

from trinity.run.local.addresses import SERVICES
from trinity.run.local.files import OPERATOR, StackCredentials
from trinity.run.local.nats import NatsServer
from trinity.run.local.postgres import SCHEMA_OWNERS, set_up_roles, set_up_schemas
from trinity.run.local.process_spec import ProcessSpec
from trinity.runtime.process.child_process import Identity, database_identity
from trinity.runtime.security.credentials import AUTHORITY, CERTIFICATE, KEY
from trinity.runtime.security.secret_files import DATABASE, SUPERUSER, SecretFiles, write_private

POSTGRES_PORT = 5432
NATS_PORT, MONITOR_PORT = 4222, 8222
INSTALLED = "/usr/lib/postgresql/*/bin"
READY_SECONDS = 60.0
LOOK_SECONDS = 0.1


def programs_with_tls() -> Path | None:
    """The folder of an installed Postgres that speaks TLS; the one that pip brings does not."""
    found = shutil.which("postgres")
    near = [Path(found).resolve().parent] if found else []
    for folder in [*near, *sorted(Path("/").glob(INSTALLED.lstrip("/")), reverse=True)]:
        programs = [folder / name for name in ("initdb", "postgres")]
        if all(one.exists() for one in programs) and b"ssl_cert_file" in programs[1].read_bytes():
            return folder
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsPostgres:
    """A Postgres that takes nobody without TLS, a certificate and a password."""

    folder: Path
    programs: Path
    address: str
    secrets: SecretFiles
    security: StackCredentials

    def prepare_process(self, log_file: Path) -> ProcessSpec:
        """Make the cluster and return the process to start."""
        self.folder.mkdir(parents=True)
        identity = database_identity(self.programs, self.folder)
        self._initialise(identity)
        for name in (AUTHORITY, CERTIFICATE, KEY):
            shutil.copy(self.security.credentials_for("postgres").file(name), self._data / name)
            (self._data / name).chmod(0o600)
            os.chown(self._data / name, *identity.owner)
        rule = "hostssl all all 0.0.0.0/0 scram-sha-256 clientcert=verify-ca\n"
        (self._data / "pg_hba.conf").write_text(rule)
        return ProcessSpec(
            name="postgres",
            argv=identity.command(self._argv(), death_signal=signal.SIGQUIT),
            log_file=log_file,
            env={"LC_ALL": "C"},
            stop_signal=signal.SIGINT,
        )

    def dsn(self, role: str, database: str = DATABASE) -> str:
        """For one of its users: a service shows its own certificate, others the operator's."""
        password = self.secrets.password(f"postgres-{role}")
        shown = self.security.credentials_for(role if role in SERVICES else OPERATOR)
        options = {
            "sslmode": "verify-full",
            "sslrootcert": shown.file(AUTHORITY),
            "sslcert": shown.file(CERTIFICATE),
            "sslkey": shown.file(KEY),
        }
        place = f"{self.address}:{POSTGRES_PORT}"
        return f"postgresql://{role}:{password}@{place}/{database}?{urlencode(options)}"

    async def wait_ready(self) -> None:
        """Return when it answers and has the services' roles and schemas."""
        passwords = {role: self.secrets.password(f"postgres-{role}") for role in SCHEMA_OWNERS}
        async with await self._connect_when_up() as connection:
            await set_up_roles(connection, passwords)
        own = await psycopg.AsyncConnection.connect(self.dsn(SUPERUSER), autocommit=True)
        async with own:
            await set_up_schemas(own)

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    async def _connect_when_up(self) -> psycopg.AsyncConnection:
        dsn = self.dsn(SUPERUSER, "postgres")
        async with asyncio.timeout(READY_SECONDS):
            while True:
                try:
                    return await psycopg.AsyncConnection.connect(dsn, autocommit=True)
                except psycopg.OperationalError:
                    await asyncio.sleep(LOOK_SECONDS)

    def _initialise(self, identity: Identity) -> None:
        password_file = self.folder / "password"
        write_private(password_file, self.secrets.password(f"postgres-{SUPERUSER}"))
        os.chown(password_file, *identity.owner)
        argv = [str(self.programs / "initdb"), "-D", str(self._data), "-U", SUPERUSER]
        argv += ["--auth=scram-sha-256", f"--pwfile={password_file}", "-E", "UTF8", "--no-sync"]
        command = identity.command([*argv, "--locale=C"], death_signal=signal.SIGKILL)
        subprocess.run(command, cwd=self.folder, capture_output=True, check=True)

    def _argv(self) -> list[str]:
        settings = {
            "listen_addresses": self.address,
            "port": str(POSTGRES_PORT),
            "unix_socket_directories": "",
            "ssl": "on",
            "ssl_ca_file": AUTHORITY,
            "ssl_cert_file": CERTIFICATE,
            "ssl_key_file": KEY,
            "fsync": "off",
            "timezone": "UTC",
        }
        argv = [str(self.programs / "postgres"), "-D", str(self._data)]
        for name, value in settings.items():
            argv += ["-c", f"{name}={value}"]
        return argv


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsNats:
    """A broker at an address of its own."""

    server: NatsServer
    address: str

    def prepare_process(self, log_file: Path) -> ProcessSpec:
        """Write its configuration and return the process to start."""
        spec = self.server.prepare_process(log_file)
        file = self.server.folder / "nats.conf"
        written = file.read_text()
        write_private(file, written.replace("host: 127.0.0.1", f"host: {self.address}"))
        return spec

    def url(self, user: str) -> str:
        """The address for one of its users."""
        return self.server.url(user).replace("127.0.0.1", self.address)
