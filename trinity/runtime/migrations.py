"""Upgrades a service's schema to the newest revision; refuses revisions that it does not know."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql

from trinity.runtime.postgres import libpq_dsn

if TYPE_CHECKING:
    from alembic.config import Config

    from trinity.runtime.schema_revisions import SchemaRevisions


@dataclass(frozen=True, slots=True, kw_only=True)
class Migrations:
    """The Alembic revisions in `folder`/versions, which make up the schema named `schema`.

    Their files begin with the revision and sort by it. Every call blocks: a service makes it in a
    thread. Concurrent calls wait for one another, and the revisions of one call are applied in one
    transaction or not at all.
    """

    folder: Path
    schema: str
    program: str
    """What a person runs to migrate, such as `python -m services.buffer migrate`."""

    def upgrade(self, dsn: str, revision: str = "head") -> None:
        """Applies the revisions that are missing.

        Raises: UserError when the schema is at a revision that this program does not know.
        """
        if revision != "head" or not self.is_newest(dsn):
            self._revisions.upgrade(dsn, revision)

    def downgrade(self, dsn: str, revision: str = "base") -> None:
        """Reverts revisions."""
        self._revisions.downgrade(dsn, revision)

    def check_newest(self, dsn: str) -> None:
        """Returns when the schema is at the newest revision.

        Raises: UserError when it is older, newer or missing.
        """
        if not self.is_newest(dsn):
            self._revisions.check_newest(dsn)

    @contextlib.contextmanager
    def connected(self, dsn: str) -> Iterator[tuple["Config", set[str]]]:
        """Locks the schema for this caller; yields Alembic's config and the current revisions."""
        with self._revisions.connected(dsn) as connected:
            yield connected

    @property
    def newest(self) -> str:
        """The newest revision that this program knows."""
        files = (self.folder / "versions").glob("[!_]*.py")
        return max(file.name.partition("_")[0] for file in files)

    def is_newest(self, dsn: str) -> bool:
        """Returns true when no revision is missing; fast, as that is so at almost every start."""
        stands = sql.SQL("SELECT version_num FROM {}.alembic_version").format(
            sql.Identifier(self.schema)
        )
        with psycopg.connect(libpq_dsn(dsn)) as connection:
            try:
                if connection.execute("SELECT to_regclass(%s)", [self._table]).fetchone() == (
                    None,
                ):
                    return False  # asked first: Postgres logs an error for a missing table
                return connection.execute(stands).fetchall() == [(self.newest,)]
            except (psycopg.errors.UndefinedTable, psycopg.errors.InsufficientPrivilege):
                return False

    @property
    def _table(self) -> str:
        return f'"{self.schema}".alembic_version'

    @property
    def _revisions(self) -> "SchemaRevisions":
        """Alembic is imported late: it takes longer than the rest of a start without migrations."""
        from trinity.runtime.schema_revisions import SchemaRevisions

        return SchemaRevisions(folder=self.folder, schema=self.schema, program=self.program)
