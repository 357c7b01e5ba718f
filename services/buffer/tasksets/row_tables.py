"""Reads the rows of a table of a database."""

import contextlib
import os
import sqlite3
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

import sqlalchemy as sa

from services.buffer.tasksets.allowed_files import AllowedFiles, FoundPlace
from services.buffer.tasksets.row_sources import SQLITE, RowSource
from trinity.errors import UserError

ROWS_AT_ONCE = 1_000
TASK_COLUMN = "raw_task"
"""A table with this column holds whole tasks there, as JSON."""
DRIVERS = {"postgresql": "postgresql+psycopg"}


def read_table(source: RowSource) -> Iterator[object]:
    """Yields the rows as columns by name, with only one chunk in memory.

    Raises: UserError when there is no such database or table.
    """
    engine = _engine(source)
    try:
        with engine.connect() as connection:
            table = _reflected(connection, source.table or "")
            statement = sa.select(table).order_by(*table.primary_key.columns)
            options = connection.execution_options(yield_per=ROWS_AT_ONCE)
            for row in options.execute(statement).mappings():
                yield row[TASK_COLUMN] if TASK_COLUMN in row else dict(row)
    except sa.exc.SQLAlchemyError as error:
        reason = str(getattr(error, "orig", None) or error).strip().partition("\n")[0]
        raise UserError(f"table {source.table} cannot be read: {reason}") from error
    finally:
        engine.dispose()


def _engine(source: RowSource) -> sa.Engine:
    """Returns an engine; SQLite files must be allowed and are opened read-only."""
    if source.place.startswith(SQLITE):
        return _engine_of_file(source.place.removeprefix(SQLITE), source)
    try:
        url = sa.make_url(source.place)
        return sa.create_engine(url.set(drivername=DRIVERS[url.drivername]))
    except (sa.exc.ArgumentError, KeyError, ValueError) as error:
        raise UserError("the address is not that of a supported database") from error


def _engine_of_file(file: str, source: RowSource) -> sa.Engine:
    tree = AllowedFiles(source.roots)
    if not tree.is_file(Path(file)):
        raise UserError(f"there is no database {file}: correct the path")
    return sa.create_engine("sqlite://", creator=lambda: _opened(file, tree))


def _opened(file: str, tree: AllowedFiles) -> sqlite3.Connection:
    """Opens SQLite by name, then checks that it opened the file that was found."""
    with tree.found(Path(file)) as place:
        if place is None:
            raise _file_changed_error(file)
        os.close(place.open(os.O_RDONLY))  # says why it cannot be read, which SQLite does not
        before = _open_files()
        with contextlib.ExitStack() as stack:
            try:
                address = f"file:{urllib.parse.quote(place.path)}?mode=ro"
                connection = sqlite3.connect(address, uri=True)
                stack.callback(connection.close)
                connection.execute("PRAGMA schema_version").fetchall()  # opens its log, if any
            except sqlite3.Error:
                _check_opened(file, place, _open_files() - before)
                raise
            _check_opened(file, place, _open_files() - before)
            stack.pop_all()
    return connection


def _check_opened(file: str, place: FoundPlace, opened: set[tuple[str, str]]) -> None:
    own = {path for number, path in opened if os.path.sameopenfile(int(number), place.descriptor)}
    logs = {f"{place.path}-wal", f"{place.path}-shm"}
    if own != {place.path} or not {path for _, path in opened} <= own | logs:
        raise _file_changed_error(file)


def _file_changed_error(file: str) -> UserError:
    return UserError(f"{file} changed while it was opened: give a file of rows that stays")


def _open_files() -> set[tuple[str, str]]:
    """Returns the open file descriptors of this process, with their paths."""
    found = set()
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the descriptor of this listing is closed
            found.add((descriptor, os.readlink(f"/proc/self/fd/{descriptor}")))
    return found


def _reflected(connection: sa.Connection, name: str) -> sa.Table:
    schema, _, table = name.rpartition(".")
    try:
        return sa.Table(table, sa.MetaData(), schema=schema or None, autoload_with=connection)
    except sa.exc.NoSuchTableError as error:
        raise UserError(f"there is no table {name}: set `table`, or create it") from error
