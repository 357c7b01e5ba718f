"""Places outside of the buffer where a run's experiences, and a queue's tasks, are written too."""

import contextlib
import sqlite3
import urllib.parse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from trinity.config.plan.stage_plan import StagePlan
from trinity.config.plan.task_storage import (
    DATABASES,
    SQLITE,
    absolute,
    database_address,
    without_password,
)
from trinity.errors import UserError
from trinity.runtime.owned_places import check_lines

FILES = (".json", ".jsonl")
FILE_NAME = "experiences.jsonl"
EXPERIENCES, POSITIONS = "experience", "experience_position"
"""Tables of experiences; the second one is the mark of the first."""
BACKUP_COLUMNS = ("id", "taskset_id", "task_index", "raw_task")
SQLITE_HEADER = b"SQLite format 3\0"
SQLITE_FILES = (".db", ".sqlite", ".sqlite3")


@dataclass(frozen=True, slots=True)
class ExperienceSink:
    """A database or JSON lines."""

    kind: Literal["sql", "jsonl"]
    place: str
    """A database's address, a `.jsonl` or `.json` file, or a directory."""

    @property
    def is_file(self) -> bool:
        """True for what lies in the file system of the buffer."""
        return self.kind == "jsonl" or self.place.startswith(SQLITE)

    @property
    def file(self) -> Path:
        """The file of what lies in the file system."""
        path = Path(self.place.removeprefix(SQLITE))
        return path if self.kind == "sql" or path.suffix in FILES else path / FILE_NAME

    @property
    def shown(self) -> str:
        """The place without a password."""
        return without_password(self.place)


def experience_sink(plan: StagePlan) -> ExperienceSink | None:
    """Returns the place of an additional copy of a stage's experiences, if there is one.

    `experience_buffer.path` names it in modes with an explorer; in mode train it names the input.
    """
    buffer = plan.config.buffer.trainer_input.experience_buffer
    if not plan.needs_rollout or plan.mode not in ("both", "explore") or not buffer.path:
        return None
    path = buffer.path
    if path.startswith(SQLITE):
        return ExperienceSink("sql", f"{SQLITE}{absolute(path.removeprefix(SQLITE))}")
    if path.startswith(DATABASES):
        return ExperienceSink("sql", path)
    is_database = path.endswith(SQLITE_FILES) or buffer.storage_type == "sql"
    if is_database and not path.endswith(FILES) and not Path(path).is_dir():
        return ExperienceSink("sql", f"{SQLITE}{absolute(path)}")
    return ExperienceSink("jsonl", absolute(path))


@dataclass(frozen=True, slots=True)
class TaskBackup:
    """The table that has a copy of each task of a queue."""

    sink: ExperienceSink
    table: str


def check_sinks(plan: StagePlan) -> None:
    """Checks that the output files of a stage were written by Trinity, are empty or do not exist.

    Raises: UserError naming their contents. The buffer checks databases on other machines.
    """
    sink, backup = experience_sink(plan), task_backup(plan)
    try:
        if sink is not None and sink.kind == "jsonl":
            check_lines(sink.file)
        elif sink is not None and sink.is_file:
            _check_database(sink.file, EXPERIENCES, needs=POSITIONS)
        if backup is not None and backup.sink.is_file:
            _check_database(backup.sink.file, backup.table, columns=BACKUP_COLUMNS)
    except (OSError, sqlite3.Error) as error:
        raise UserError(f"what is written beside the run cannot be looked into: {error}") from error


def _check_database(
    file: Path, table: str, *, needs: str = "", columns: Sequence[str] = ()
) -> None:
    """Checks a SQLite file: a table of the name is ours if it has a twin, or these columns."""
    if not file.exists():
        return
    with file.open("rb") as opened:
        if opened.read(len(SQLITE_HEADER)) not in (b"", SQLITE_HEADER):
            raise UserError(f"{file} is not a SQLite database: give another path")
    address = f"file:{urllib.parse.quote(str(file))}?mode=ro"
    with contextlib.closing(sqlite3.connect(address, uri=True)) as database:
        tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
        asked = database.execute("SELECT name FROM pragma_table_info(?)", [table])
        found = [name for (name,) in asked]
    is_ours = needs in tables if needs else found == list(columns)
    if table in tables and not is_ours:
        raise UserError(
            f"{file} has a table {table} that Trinity has not made, so nothing is written there: "
            "give another path, or rename the table"
        )


def task_backup(plan: StagePlan) -> TaskBackup | None:
    """Returns where the tasks of a stage's queue are written too, if anywhere."""
    listed = plan.config.buffer.explorer_input.to_train_on
    if len(listed) != 1 or len(plan.tasksets) != 1 or not listed[0].path:
        return None
    [resolved] = plan.tasksets
    if resolved.storage_type != "queue":
        return None
    return TaskBackup(ExperienceSink("sql", database_address(listed[0].path, "")), resolved.name)
