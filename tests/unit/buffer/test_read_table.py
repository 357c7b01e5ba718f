"""Files of SQLite: the one that was named and is allowed is read, whatever its name looks like."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from services.buffer.tasksets.row_sources import RowSource
from services.buffer.tasksets.row_tables import read_table
from trinity.errors import UserError


def write(file: Path, prompt: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with sqlite3.connect(file) as connection:
        connection.execute("CREATE TABLE train (id INTEGER PRIMARY KEY, prompt TEXT)")
        connection.execute("INSERT INTO train (prompt) VALUES (?)", [prompt])
    connection.close()


def read(file: Path, root: Path) -> list[object]:
    source = RowSource(kind="sql", place=f"sqlite:///{file}", table="train", roots=(str(root),))
    return list(read_table(source))


@pytest.mark.parametrize("name", ["a.db", "50%20.db", "what?.db", "c#.db", "a b.db", "\u00fc.db"])
def test_a_file_of_any_name_is_read(tmp_path: Path, name: str) -> None:
    write(tmp_path / name, "1+1=")
    assert read(tmp_path / name, tmp_path) == [{"id": 1, "prompt": "1+1="}]


@pytest.mark.parametrize("way_out", ["%2e%2e", "%2E%2E"])
def test_no_name_leads_out_of_the_roots(tmp_path: Path, way_out: str) -> None:
    write(tmp_path / "secret.db", "hidden")
    write(tmp_path / "allowed" / way_out / "secret.db", "shown")
    rows = read(tmp_path / "allowed" / way_out / "secret.db", tmp_path / "allowed")
    assert rows == [{"id": 1, "prompt": "shown"}]


def test_a_file_elsewhere_or_behind_a_link_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "secret.db", "hidden")
    (tmp_path / "allowed").mkdir()
    (tmp_path / "allowed" / "link.db").symlink_to(tmp_path / "secret.db")
    for file in (tmp_path / "secret.db", tmp_path / "allowed" / "link.db"):
        with pytest.raises(UserError, match="lies outside of"):
            read(file, tmp_path / "allowed")


@pytest.fixture
def asked(tmp_path: Path) -> Path:
    """A database in a directory that is allowed, and one of the same name elsewhere."""
    write(tmp_path / "elsewhere" / "a.db", "hidden")
    write(tmp_path / "allowed" / "here" / "a.db", "shown")
    return tmp_path / "allowed" / "here" / "a.db"


def lead_elsewhere(asked: Path) -> None:
    root = asked.parents[2]
    asked.parent.rename(root / "before")
    asked.parent.symlink_to(root / "elsewhere")


def test_a_link_that_changes_while_the_database_is_opened_leads_nowhere(
    asked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = sqlite3.connect

    def late(address: str, *, uri: bool) -> sqlite3.Connection:
        lead_elsewhere(asked)
        return connect(address, uri=uri)

    monkeypatch.setattr(sqlite3, "connect", late)
    with pytest.raises(UserError, match="changed while it was opened"):
        read(asked, asked.parents[1])


def test_a_log_that_lies_elsewhere_is_not_read(asked: Path, tmp_path: Path) -> None:
    """A write-ahead log holds rows that its database does not have yet."""
    with closing(sqlite3.connect(tmp_path / "elsewhere" / "a.db")) as writer:
        writer.execute("PRAGMA journal_mode = WAL")
        writer.execute("UPDATE train SET prompt = 'hidden, and newer'")
        writer.commit()
        with closing(sqlite3.connect(asked)) as own:
            own.execute("PRAGMA journal_mode = WAL")
        for end in ("-wal", "-shm"):
            asked.with_name(f"a.db{end}").symlink_to(tmp_path / "elsewhere" / f"a.db{end}")
        with pytest.raises(UserError, match="unable to open database file"):
            read(asked, asked.parents[1])


def test_rows_that_are_only_in_the_log_are_read(asked: Path) -> None:
    with closing(sqlite3.connect(asked)) as writer:
        writer.execute("PRAGMA journal_mode = WAL")
        writer.execute("INSERT INTO train (prompt) VALUES ('newer')")
        writer.commit()
        rows = read(asked, asked.parents[1])
    assert rows == [{"id": 1, "prompt": "shown"}, {"id": 2, "prompt": "newer"}]


def test_what_is_no_database_is_said(tmp_path: Path) -> None:
    (tmp_path / "a.db").write_text("no database, but a text that is long enough" * 50)
    with pytest.raises(UserError, match="table train cannot be read: file is not a database"):
        read(tmp_path / "a.db", tmp_path)


def test_a_table_is_never_written(tmp_path: Path) -> None:
    write(tmp_path / "a.db", "1+1=")
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}
    read(tmp_path / "a.db", tmp_path)
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == before
