"""Files of SQLite: the one that was named and is allowed is read, whatever its name looks like."""

import sqlite3
from pathlib import Path

import pytest

from services.buffer.read_table import read_table
from services.buffer.row_source import RowSource
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


def test_a_table_is_never_written(tmp_path: Path) -> None:
    write(tmp_path / "a.db", "1+1=")
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}
    read(tmp_path / "a.db", tmp_path)
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == before
