"""Restores a deployment's database from a backup: python -m trinity.run.deploy.restore

Takes an empty database, with its accounts; all or nothing is restored. `restore fence` is for a
database that something else has taken back to an earlier time, such as a provider's snapshot.

The world is ahead of such a database: weights, checkpoints, results and services are of a time that
it does not know. So each stage gets a new incarnation, above all that may have been given out
since: earlier trainers are refused, no work is handed out before weights of a new life are
published, the trainer sets the files of lost lives aside, and explorers begin anew.
"""

import asyncio
import logging
import shutil
import subprocess
import sys
import tempfile
import urllib.parse
from functools import partial
from pathlib import Path
from typing import IO

import psycopg
from pydantic import Field, SecretStr
from pydantic_settings import SettingsConfigDict

from trinity.errors import UserError
from trinity.run.deploy.backup import (
    first_error,
    libpq_environment,
    program_command,
    stored_backups,
)
from trinity.run.local.postgres import DATABASE
from trinity.runtime.postgres import libpq_dsn, place, wait_until_up
from trinity.runtime.rpc.runner import USER_ERROR, run_service
from trinity.runtime.settings import ServiceSettings

logger = logging.getLogger(__name__)

EMPTY = """
DO $$
DECLARE
    named record;
    has_rows boolean;
BEGIN
    FOR named IN SELECT format('%I.%I', schemaname, tablename) AS name, tablename FROM pg_tables
        WHERE schemaname IN ('buffer', 'synchronizer')
        AND tablename NOT IN ('alembic_version', 'member', 'closed_wait')
    LOOP
        EXECUTE 'LOCK TABLE ' || named.name;
        EXECUTE 'SELECT EXISTS (SELECT FROM ' || named.name || ')' INTO has_rows;
        IF has_rows THEN RAISE EXCEPTION 'its table % has rows', named.name; END IF;
    END LOOP;
END $$;
DROP SCHEMA IF EXISTS buffer, synchronizer CASCADE;
"""
"""Removes schemas as accounts and migrations leave them; what members report does not count."""
FENCE = """
CREATE TEMPORARY TABLE fence ON COMMIT DROP AS
SELECT tenant, experiment_id, b.stage,
    greatest(b.incarnation + 1, extract(epoch FROM clock_timestamp())::bigint) AS incarnation
FROM buffer.stage b JOIN synchronizer.stage s USING (tenant, experiment_id)
WHERE s.name = b.stage AND 'trainer' = ANY (s.roles);
INSERT INTO buffer.incarnation (tenant, experiment_id, stage, incarnation, trainer_id)
SELECT *, '00000000-0000-0000-0000-000000000000' FROM fence;
UPDATE buffer.stage b SET incarnation = f.incarnation, published = NULL
FROM fence f WHERE (b.tenant, b.experiment_id, b.stage) = (f.tenant, f.experiment_id, f.stage);
INSERT INTO synchronizer.version (tenant, experiment_id, stage, incarnation, version, kind,
    base_version, parent_version, path, manifest_sha256, weights_sha256, available)
SELECT *, 0, 'full', 0, -1, '', '', '', false FROM fence;
UPDATE synchronizer.experiment SET start_count = start_count + 1, turn = NULL
WHERE state = 'running';
"""
"""The seconds since 1970 are more than the lives of a trainer, also after earlier restores."""
SESSIONS = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND usename IN ('buffer', 'synchronizer')
"""


class RestoreSettings(ServiceSettings):
    """Settings from the `TRINITY_RESTORE_*` variables; the address may be given as `..._FILE`."""

    model_config = SettingsConfigDict(env_prefix="TRINITY_RESTORE_")

    admin_dsn: SecretStr
    """The address that the accounts job is given."""
    folder: Path
    """The folder with the backups."""
    number: int = Field(default=0, ge=0)
    """Number of the backup; 0 is the newest."""
    connect_seconds: float = Field(default=60.0, gt=0)
    """Time to wait for the database."""


async def restore(settings: RestoreSettings, stop: asyncio.Event, *, fence: bool = False) -> None:
    """Restores a backup and fences off what came after it; with `fence`, does the latter alone."""
    admin = urllib.parse.urlsplit(settings.admin_dsn.get_secret_value())
    dsn = admin._replace(path=f"/{DATABASE}").geturl()
    backup = None if fence else _chosen(settings)
    if not await wait_until_up(dsn, settings.connect_seconds, stop):
        return
    async with await psycopg.AsyncConnection.connect(libpq_dsn(dsn)) as connection:
        [used] = await (await connection.execute(SESSIONS)).fetchone() or (0,)
        if used:
            raise UserError(
                f"the buffer or the synchronizer is connected to {place(dsn)} ({used} sessions): "
                "stop both, and start them once it is restored"
            )
        if backup is None:
            await connection.execute(FENCE)
    if backup is not None:
        await asyncio.to_thread(_restore, backup, dsn)
    logger.info("restored", extra={"database": place(dsn), "file": str(backup or "")})


def _chosen(settings: RestoreSettings) -> Path:
    known = stored_backups(settings.folder)
    if not known:
        raise UserError(f"{settings.folder} holds no backup: give the folder of the backup job")
    if (number := settings.number or max(known)) not in known:
        raise UserError(
            f"{settings.folder} holds no backup {number}: it has {', '.join(map(str, known))}"
        )
    return known[number]


def _restore(backup: Path, dsn: str) -> None:
    """Has psql run the whole in one transaction, which only the last word of its input commits."""
    with tempfile.TemporaryFile() as errors:
        psql = subprocess.Popen(
            program_command("psql", "-Xq", "--set=ON_ERROR_STOP=1", "--file=-"),
            env=libpq_environment(dsn),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=errors,
        )
        dump = subprocess.Popen(
            program_command("pg_restore", "--file=-", str(backup)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
        )
        assert psql.stdin is not None
        assert dump.stdout is not None
        with dump, psql:
            is_whole = _send(dump, dump.stdout, psql.stdin)
        if not is_whole or psql.returncode != 0:
            errors.seek(0)
            reason = first_error(errors.read().decode(errors="replace"))
            raise UserError(
                f"{place(dsn)} was left as it was, not restored from {backup}: {reason}; give an "
                "empty database and a whole backup"
            )


def _send(dump: subprocess.Popen[bytes], script: IO[bytes], psql: IO[bytes]) -> bool:
    """Sends psql the dump in its frame; returns false, without a commit, if either ended early."""
    try:
        psql.write(f"BEGIN;{EMPTY}".encode())
        shutil.copyfileobj(script, psql)
        if dump.wait() != 0:
            return False
        psql.write(f"{FENCE}COMMIT;\n".encode())
        psql.close()
    except BrokenPipeError:
        return False
    return True


def main() -> int:
    """Runs the job; its entry point."""
    match sys.argv[1:]:
        case []:
            return run_service("restore", RestoreSettings, restore)
        case ["fence"]:
            return run_service("restore", RestoreSettings, partial(restore, fence=True))
        case arguments:
            sys.stderr.write(f"restore: unknown arguments {arguments}; try `fence`\n")
            return USER_ERROR


if __name__ == "__main__":
    sys.exit(main())
