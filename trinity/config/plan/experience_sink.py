"""Places outside of the buffer where a run's experiences, and a queue's tasks, are written too."""

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

FILES = (".json", ".jsonl")
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
    def shown(self) -> str:
        """The place without a password."""
        return without_password(self.place)


def experience_sink(plan: StagePlan) -> ExperienceSink | None:
    """Returns where a stage's experiences are written beside the buffer's database, if anywhere.

    `experience_buffer.path` names it in modes with an explorer; in mode train it is what is read.
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


def task_backup(plan: StagePlan) -> TaskBackup | None:
    """Returns where the tasks of a stage's queue are written too, if anywhere."""
    own = plan.config.buffer.explorer_input
    listed = [own.taskset] if own.taskset is not None else own.tasksets
    if len(listed) != 1 or len(plan.tasksets) != 1 or not listed[0].path:
        return None
    [resolved] = plan.tasksets
    if resolved.storage_type != "queue":
        return None
    return TaskBackup(ExperienceSink("sql", database_address(listed[0].path, "")), resolved.name)
