"""Ways in which the tasks of `benchmarks.million_tasks` come in: a file, a gRPC stream, a table."""

import asyncio
import json
import sqlite3
import sys
from asyncio.subprocess import DEVNULL
from collections.abc import Mapping
from contextlib import closing
from enum import StrEnum
from pathlib import Path

FILE, DATABASE, NAME = "tasks.jsonl", "tasks.db", "many"


class Way(StrEnum):
    """A way of bringing tasks into a buffer."""

    FILE = "file"
    """JSON lines, which the buffer reads."""
    GRPC = "grpc"
    """`trinity taskset submit` in a process of its own, through the SDK, from that file."""
    SQL = "sql"
    """A table of SQLite that has those rows as whole tasks."""


def write_tasks(way: Way, root: Path, num_tasks: int) -> None:
    """The file, which every way begins with, and the table."""
    with (root / FILE).open("w") as stream:
        for i in range(num_tasks):
            row = {"prompt": f"{i}+{i}=", "response": str(2 * i), "hard": i * 37 % 100}
            stream.write(json.dumps(row) + "\n")
    if way is Way.SQL:
        _write_table(root)


def _write_table(root: Path) -> None:
    with (
        closing(sqlite3.connect(root / DATABASE)) as connection,
        connection,
        (root / FILE).open() as lines,
    ):
        connection.execute(f"CREATE TABLE {NAME} (id INTEGER PRIMARY KEY, raw_task JSON)")
        insert = f"INSERT INTO {NAME} (raw_task) VALUES (?)"
        connection.executemany(insert, ((line.rstrip(),) for line in lines))


def taskset_of(way: Way, root: Path) -> Mapping[str, object]:
    """The part of a configuration that names the tasks."""
    match way:
        case Way.FILE:
            return {"name": NAME, "path": str(root / FILE)}
        case Way.GRPC:
            return {"name": NAME, "storage_type": "client", "path": None}
        case Way.SQL:
            return {"name": NAME, "storage_type": "sql", "path": f"sqlite:///{root / DATABASE}"}


async def submit(address: str, root: Path) -> None:
    """Submits the tasks and returns once the buffer has stored all."""
    command = ("taskset", "submit", str(root / FILE), "--name", NAME, "--buffer", address)
    client = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "trinity.cli.main", *command), stdout=DEVNULL
    )
    assert await client.wait() == 0, "standard error says why"
