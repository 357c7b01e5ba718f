"""Backs up a deployment's database: python -m trinity.run.deploy.backup

One snapshot of both schemas, as Postgres' own `pg_dump` writes it, while the services work. It is
moved to its name when it is whole: `backup-000007.dump`. Run as a job, with the role `backup`.
"""

import asyncio
import logging
import re
import signal
import subprocess
import sys
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import Conninfo
from pydantic import Field, SecretStr
from pydantic_settings import SettingsConfigDict

from trinity.errors import RunFailed
from trinity.run.local.binaries import postgres_programs
from trinity.run.local.postgres import SCHEMA_OWNERS
from trinity.runtime.owned_places import claim_folder, move_to_new, working_folder
from trinity.runtime.postgres import libpq_dsn, place, wait_until_up
from trinity.runtime.process.child_process import OWN_IDENTITY
from trinity.runtime.rpc.runner import run_service
from trinity.runtime.settings import ServiceSettings
from trinity.weights.manifest import make_durable

logger = logging.getLogger(__name__)

CONNECT_SECONDS = 60.0
_NAME = re.compile(r"backup-(\d{6,})\.dump")


class BackupSettings(ServiceSettings):
    """Settings from the `TRINITY_BACKUP_*` variables; the address may be given as `..._FILE`."""

    model_config = SettingsConfigDict(env_prefix="TRINITY_BACKUP_")

    dsn: SecretStr
    """The database's address with a user that may read it all: the role `backup`."""
    folder: Path
    """Where the backups of this database are kept, and of no other."""
    keep: int = Field(default=7, ge=1)
    """Newest backups that are kept; older ones are removed once another is whole."""


async def back_up(settings: BackupSettings, stop: asyncio.Event) -> None:
    """Writes the next backup, then removes those that are too many."""
    dsn, folder = settings.dsn.get_secret_value(), settings.folder
    if not await wait_until_up(dsn, CONNECT_SECONDS, stop):
        return
    claim_folder(folder, "give the backups of each database a folder of their own")
    path = folder / f"backup-{max(stored_backups(folder), default=0) + 1:06}.dump"
    await asyncio.to_thread(_dump, dsn, path)
    for old in list(stored_backups(folder).values())[: -settings.keep]:
        old.unlink()
    logger.info("backed up", extra={"database": place(dsn), "file": str(path)})


def stored_backups(folder: Path) -> dict[int, Path]:
    """Returns the backups by their number, oldest first."""
    found = [(match, path) for path in folder.glob("*") if (match := _NAME.fullmatch(path.name))]
    return dict(sorted((int(match[1]), path) for match, path in found))


def _dump(dsn: str, path: Path) -> None:
    with working_folder(path) as work:
        made = work / path.name
        made.touch(mode=0o600)
        schemas = [f"--schema={name}" for name in SCHEMA_OWNERS]
        done = subprocess.run(
            program_command("pg_dump", "--format=custom", *schemas, f"--file={made}"),
            env=libpq_environment(dsn),
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            raise RunFailed(f"{place(dsn)} was not backed up: {first_error(done.stderr)}")
        move_to_new(made, path)
    make_durable(path.parent)


def program_command(name: str, *arguments: str) -> list[str]:
    """Returns the command for a program of Postgres, which ends with this process.

    Raises: UserError if it is not installed.
    """
    argv = [str(postgres_programs() / name), *arguments]
    return OWN_IDENTITY.command(argv, death_signal=signal.SIGKILL)


def libpq_environment(dsn: str) -> dict[str, str]:
    """Returns an address as libpq's variables: other users can read a process's arguments."""
    given = conninfo_to_dict(libpq_dsn(dsn))
    names = {
        option.keyword.decode(): option.envvar.decode()
        for option in Conninfo.get_defaults()
        if option.envvar
    }
    return {"LC_ALL": "C", **{names[key]: str(given[key]) for key in names.keys() & given.keys()}}


def first_error(stderr: str) -> str:
    """Returns the first line of a program's errors, without its name."""
    line = next((line for line in stderr.splitlines() if "error:" in line.lower()), stderr.strip())
    return re.split(r"error: +", line, maxsplit=1, flags=re.IGNORECASE)[-1]


if __name__ == "__main__":
    sys.exit(run_service("backup", BackupSettings, back_up))
