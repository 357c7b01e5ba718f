"""Tasks of a queue in a database of the user's: each once, by one writer at a time."""

from pathlib import Path

import pytest

from services.buffer.sink.targets import SinkFailed, SinkFenced
from services.buffer.sink.writer import BackupTable
from services.buffer.tasksets.row_sources import RowSource
from services.buffer.tasksets.row_tables import read_table
from tests.unit.config.builders import stage
from trinity.config.plan.experience_sink import ExperienceSink, TaskBackup, task_backup
from trinity.errors import UserError

ID, OTHER = "7d1f0c6e-7c3b-4f0e-9d2e-1b1c5a7f4a10", "00000000-7c3b-4f0e-9d2e-1b1c5a7f4a10"


def backup_in(file: Path) -> TaskBackup:
    return TaskBackup(ExperienceSink("sql", f"sqlite:///{file}"), "sums")


def test_a_backup_goes_on_where_it_ended_and_is_read_as_tasks(tmp_path: Path) -> None:
    backup = backup_in(tmp_path / "new" / "tasks.db")
    table = BackupTable(backup)
    assert table.num_rows(ID) == 0
    table.append(ID, 0, ['{"q": 1}', '{"q": 2}'])
    table.close()
    later = BackupTable(backup)
    assert (later.num_rows(ID), later.num_rows(OTHER)) == (2, 0)
    later.append(ID, 2, ['{"q": 3}'])
    later.append(OTHER, 0, ['{"q": 4}'])
    source = RowSource(kind="sql", place=backup.sink.place, table="sums", roots=(str(tmp_path),))
    assert list(read_table(source)) == [{"q": i} for i in range(1, 5)]


def test_a_second_writer_of_the_same_tasks_writes_none_of_them(tmp_path: Path) -> None:
    backup = backup_in(tmp_path / "tasks.db")
    first, second = BackupTable(backup), BackupTable(backup)
    first.append(ID, 0, ["{}", "{}"])
    with pytest.raises(SinkFenced):
        second.append(ID, 1, ["{}", "{}"])
    assert second.num_rows(ID) == 2


def test_a_place_that_is_no_database_is_named(tmp_path: Path) -> None:
    file = tmp_path / "notes.db"
    file.write_text("no database " * 100)
    with pytest.raises(SinkFailed, match=r"notes\.db: file is not a database"):
        BackupTable(backup_in(file))


def queue(**keys: object) -> dict[str, object]:
    taskset = {"name": "sums", "storage_type": "queue", **keys}
    return {"total_steps": 3, "explorer_input": {"taskset": taskset}}


def test_the_path_of_a_queue_is_that_of_its_backup(tmp_path: Path) -> None:
    assert task_backup(stage(buffer=queue(path=str(tmp_path / "a.db")))) == backup_in(
        tmp_path / "a.db"
    )
    assert task_backup(stage(buffer=queue(path=f"sqlite:///{tmp_path}/a.db"))) == backup_in(
        tmp_path / "a.db"
    )
    assert task_backup(stage(buffer=queue(path=None))) is None
    assert task_backup(stage()) is None, "rows of a file have no copy"
    with pytest.raises(UserError, match="is not a database's address"):
        stage(buffer=queue(path="redis://queue"))


def test_a_plain_path_is_a_sqlite_file(tmp_path: Path) -> None:
    taskset = {"name": "sums", "storage_type": "sql", "path": str(tmp_path / "tasks.sqlite")}
    planned = stage(buffer={"total_steps": 3, "explorer_input": {"taskset": taskset}})
    assert planned.tasksets[0].path == f"sqlite:///{tmp_path}/tasks.sqlite"
