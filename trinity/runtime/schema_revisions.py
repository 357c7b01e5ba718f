"""Alembic migrations of a service's schema; imported only where there is something to do."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import sqlalchemy as sa
from alembic import command, context
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from trinity.errors import UserError
from trinity.runtime.postgres import connection_options, place, sqlalchemy_url

_LOCK_SECONDS = 60
_CONNECTION = "connection"


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaRevisions:
    """The revisions in `folder`/versions; the fields and calls of `migrations.Migrations`."""

    folder: Path
    schema: str
    program: str

    def upgrade(self, dsn: str, revision: str = "head") -> None:
        """Applies the revisions that are missing.

        Raises: UserError when the schema is at a revision that this program does not know.
        """
        with self.connected(dsn) as (config, _):
            command.upgrade(config, revision)

    def downgrade(self, dsn: str, revision: str = "base") -> None:
        """Reverts revisions."""
        with self.connected(dsn) as (config, _):
            command.downgrade(config, revision)

    def check_newest(self, dsn: str) -> None:
        """Returns when the schema is at the newest revision.

        Raises: UserError when it is older, newer or missing.
        """
        with self.connected(dsn, may_create=False) as (config, current):
            if current != set(ScriptDirectory.from_config(config).get_heads()):
                raise UserError(
                    f"The schema {self.schema} in the database at {place(dsn)} is missing or older "
                    f"than this program: run `{self.program}`"
                )

    @contextlib.contextmanager
    def connected(self, dsn: str, *, may_create: bool = True) -> Iterator[tuple[Config, set[str]]]:
        """Locks the schema for this caller; yields Alembic's config and the current revisions."""
        config = Config()
        config.set_main_option("script_location", str(self.folder).replace("%", "%%"))
        engine = sa.create_engine(
            sqlalchemy_url(dsn), connect_args=connection_options(self.schema), poolclass=sa.NullPool
        )
        with engine.begin() as connection:
            self._lock(connection, dsn)
            if may_create:
                self._ensure_schema(connection, dsn)
            current = set(MigrationContext.configure(connection).get_current_heads())
            self._refuse_unknown(config, current, dsn)
            config.attributes[_CONNECTION] = connection
            yield config, current

    def _lock(self, connection: sa.Connection, dsn: str) -> None:
        """Waits for other migrations of this schema."""
        connection.execute(sa.text(f"SET LOCAL lock_timeout = '{_LOCK_SECONDS}s'"))
        key = sa.func.hashtextextended(f"trinity migrations of {self.schema}", 0)
        try:
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(key)))
        except sa.exc.OperationalError as error:
            raise UserError(
                f"Another process has been migrating the schema {self.schema} in the database at "
                f"{place(dsn)} for {_LOCK_SECONDS} s: wait for it, or end its session"
            ) from error

    def _ensure_schema(self, connection: sa.Connection, dsn: str) -> None:
        exists = sa.text("SELECT 1 FROM pg_namespace WHERE nspname = :name")
        if connection.execute(exists, {"name": self.schema}).first() is not None:
            return
        try:
            connection.execute(sa.schema.CreateSchema(self.schema))
        except sa.exc.ProgrammingError as error:
            if not isinstance(error.orig, psycopg.errors.InsufficientPrivilege):
                raise
            raise UserError(
                f"The database at {place(dsn)} has no schema {self.schema}, and this user may not "
                f"make it: have its owner run `CREATE SCHEMA {self.schema} AUTHORIZATION <user>`"
            ) from error

    def _refuse_unknown(self, config: Config, current: set[str], dsn: str) -> None:
        known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
        if unknown := sorted(current - known):
            raise UserError(
                f"The schema {self.schema} in the database at {place(dsn)} is at revision "
                f"{', '.join(unknown)}, which this program does not know: install the version "
                f"that migrated it, or use an empty database (for `trinity run`, another directory)"
            )


def run_environment(metadata: sa.MetaData) -> None:
    """Runs all of a service's `migrations/env.py` on the connection of `connected`."""
    context.configure(
        connection=context.config.attributes[_CONNECTION],
        target_metadata=metadata,
        compare_server_default=True,
    )
    context.run_migrations()
