"""Restores a deployment's database from a backup: python -m trinity.run.deploy.restore

Takes an empty database, with its accounts; all or nothing is restored.

The world is ahead of such a database: weights, checkpoints, results and services are of a time that
it does not know. So each stage gets a new incarnation, above all that may have been given out
since: earlier trainers are refused, no work is handed out before a new life has published weights,
the trainer sets the files of lost lives aside, and explorers begin again.
"""

import asyncio
import contextlib
import logging
import shutil
import sys
import tempfile
import urllib.parse
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen

import psycopg
from pydantic import Field, SecretStr
from pydantic_settings import SettingsConfigDict

from trinity.errors import UserError
from trinity.run.deploy.backup import (
    CONNECT_SECONDS,
    first_error,
    libpq_environment,
    program_command,
    stored_backups,
)
from trinity.runtime.postgres import libpq_dsn, place, wait_until_up
from trinity.runtime.rpc.runner import run_service
from trinity.runtime.security.secret_files import DATABASE
from trinity.runtime.settings import ServiceSettings

logger = logging.getLogger(__name__)

EMPTY = """
DO $$ DECLARE own record; has_rows boolean; BEGIN
    FOR own IN SELECT format('%I.%I', schemaname, tablename) AS name FROM pg_tables
        WHERE schemaname IN ('buffer', 'synchronizer')
        AND tablename NOT IN ('alembic_version', 'member', 'closed_wait')
    LOOP
        EXECUTE 'LOCK TABLE ' || own.name;
        EXECUTE 'SELECT EXISTS (SELECT FROM ' || own.name || ')' INTO has_rows;
        IF has_rows THEN RAISE EXCEPTION 'its table % has rows', own.name; END IF;
    END LOOP;
END $$;
DROP SCHEMA IF EXISTS buffer, synchronizer CASCADE;
"""
"""Removes schemas as accounts and migrations leave them; reports of members do not count."""
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
SELECT DISTINCT usename FROM pg_stat_activity
WHERE datname = current_database() AND usename IN ('buffer', 'synchronizer')
"""


class RestoreSettings(ServiceSettings):
    """Settings from the `TRINITY_RESTORE_*` variables; the address may be given as `..._FILE`."""

    model_config = SettingsConfigDict(env_prefix="TRINITY_RESTORE_")

    admin_dsn: SecretStr
    """The address that the accounts job is given."""
    folder: Path = Path()
    """The folder with the backups."""
    number: int = Field(default=0, ge=0)
    """Number of the backup; 0 is the newest."""
    fence_only: bool = False
    """True for a database that something else has taken back, such as a provider's snapshot."""


async def restore(settings: RestoreSettings, stop: asyncio.Event) -> None:
    """Restores a backup, and fences off the time after it."""
    admin = urllib.parse.urlsplit(settings.admin_dsn.get_secret_value())
    dsn = admin._replace(path=f"/{DATABASE}").geturl()
    backup = None if settings.fence_only else _chosen(settings)
    if not await wait_until_up(dsn, CONNECT_SECONDS, stop):
        return
    async with await psycopg.AsyncConnection.connect(libpq_dsn(dsn)) as connection:
        if used := await (await connection.execute(SESSIONS)).fetchall():
            names = " and ".join(role for (role,) in used)
            raise UserError(f"{place(dsn)} is in use: stop the {names} until it is restored")
        if backup is None:
            await connection.execute(FENCE)
    if backup is not None and (reason := await asyncio.to_thread(_restore, backup, dsn)):
        raise UserError(
            f"{place(dsn)} was left as it was, not restored from {backup}: {reason}; give an empty "
            "database and a whole backup"
        )
    logger.info("restored", extra={"database": place(dsn), "file": str(backup or "")})


def _chosen(settings: RestoreSettings) -> Path:
    known = stored_backups(settings.folder)
    chosen = known.get(settings.number or max(known, default=0))
    if chosen is None:
        listed = ", ".join(map(str, known)) or "none"
        raise UserError(
            f"{settings.folder} does not hold the backup: TRINITY_RESTORE_FOLDER and "
            f"TRINITY_RESTORE_NUMBER name one of those that are there ({listed})"
        )
    return chosen


def _restore(backup: Path, dsn: str) -> str:
    """Has psql run all in one transaction, which the last line of its input alone commits.

    Returns the reason why it did not.
    """
    with tempfile.TemporaryFile() as errors:
        environment = libpq_environment(dsn)
        script = program_command("psql", "-Xq", "--set=ON_ERROR_STOP=1", "--file=-")
        reading = program_command("pg_restore", "--file=-", str(backup))
        with (
            contextlib.suppress(BrokenPipeError),  # psql has ended with an error
            Popen(script, env=environment, stdin=PIPE, stdout=DEVNULL, stderr=errors) as psql,
            Popen(reading, stdin=DEVNULL, stdout=PIPE, stderr=errors) as dump,
        ):
            assert psql.stdin is not None
            assert dump.stdout is not None
            psql.stdin.write(f"BEGIN;{EMPTY}".encode())
            shutil.copyfileobj(dump.stdout, psql.stdin)
            if dump.wait() == 0:
                psql.stdin.write(f"{FENCE}COMMIT;\n".encode())
                psql.stdin.close()
        errors.seek(0)
        failed = dump.returncode or psql.returncode
        return first_error(errors.read().decode(errors="replace")) if failed else ""


if __name__ == "__main__":
    sys.exit(run_service("restore", RestoreSettings, restore))
