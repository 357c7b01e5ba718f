"""Tasks that others change or bring while an experiment takes from them.

A stage keeps the rows that its file or table had when it was opened. A queue has what its client
brought, in this order, and so has the database that it is copied to.
"""

import asyncio
import json
import sqlite3
from collections.abc import Awaitable, Callable, Mapping
from contextlib import closing, suppress
from itertools import count
from typing import Any

import psycopg
from pydantic import JsonValue

from tests.chaos.arena import Arena
from tests.chaos.seeing import PATIENCE_SECONDS, when_up
from tests.chaos.sinks import CATCH_UP_SECONDS, postgres_of
from trinity.client import AsyncTasksets
from trinity.errors import NotFound, Unavailable

Taskset = dict[str, JsonValue]
Change = Callable[[int], object]
PAUSE_SECONDS = 0.2
ROWS = [{"prompt": f"{i}+{i}=", "response": f"{2 * i}", "strong": i / 64} for i in range(32)]
AT_ONCE = 4
QUEUE = "queue"
ROWS_AS_TABLE = """
    CREATE TABLE IF NOT EXISTS tasks AS
    SELECT * FROM jsonb_to_recordset(%s) AS t (prompt text, response text, strong float8)
"""
CHANGES = (
    "UPDATE tasks SET prompt = prompt || '1='",
    "INSERT INTO tasks VALUES ('1=', '1', 0)",
    "DELETE FROM tasks WHERE strong < (SELECT avg(strong) FROM tasks)",
)
IS_OPEN = "SELECT 1 FROM stage_taskset JOIN taskset USING (tenant, taskset_id) WHERE source LIKE %s"


def file_in(arena: Arena, name: str) -> tuple[Taskset, Change]:
    """A file of tasks, and what replaces it, or lets it grow."""
    path = arena.root / name / "tasks.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return {"path": str(path)}, lambda number: path.write_text("{}\n" * (number % 9))


def table_in(arena: Arena, name: str) -> tuple[Taskset, Change]:
    """A table of tasks that are drawn by a ranking, and what changes its rows."""
    place = postgres_of(arena, name)
    with psycopg.connect(place) as connection:
        connection.execute(ROWS_AS_TABLE, [json.dumps(ROWS)])

    def change(number: int) -> None:
        with psycopg.connect(place) as connection:
            connection.execute(CHANGES[number % len(CHANGES)].encode())

    ranking: JsonValue = {"selector_type": "offline_easy2hard", "feature_keys": ["strong"]}
    taskset: Taskset = {"storage_type": "sql", "path": place, "table": "tasks"}
    return {**taskset, "data_selector": ranking}, change


PLACES: Mapping[str, Callable[[Arena, str], tuple[Taskset, Change]]] = {
    "tasks_file": file_in,
    "tasks_sql": table_in,
}


async def keep_changing(arena: Arena, name: str, change: Change) -> None:
    """Changes tasks again and again, once the stage is open that takes from them."""
    source = [f"%{name.replace('-', '_')}_tasks%"]  # `_` is any character
    while not await asyncio.to_thread(  # noqa: ASYNC110  # another process
        when_up, arena, lambda connection: connection.execute(IS_OPEN, source).fetchone()
    ):
        await asyncio.sleep(PAUSE_SECONDS)
    for number in count():
        with suppress(OSError, psycopg.Error):  # a full disk, a dead database
            await asyncio.to_thread(change, number)
        await asyncio.sleep(PAUSE_SECONDS)


def queue_in(arena: Arena, name: str) -> Taskset:
    """A queue that is copied to a file of SQLite."""
    place = f"sqlite:///{arena.root / name / QUEUE}.db"
    return {"storage_type": QUEUE, "name": QUEUE, "path": place}


async def feed(arena: Arena, name: str) -> list[str]:
    """Submits tasks to its tenant's queue, and tasksets that it deletes; returns what is wrong."""
    wrong = []
    async with AsyncTasksets(
        arena.stack.addresses.buffer, tenant=name, patience_seconds=PATIENCE_SECONDS
    ) as tasksets:
        for first in range(0, len(ROWS), AT_ONCE):
            await tasksets.submit(QUEUE, ROWS[first : first + AT_ONCE], is_queue=True)
            await tasksets.submit(other := f"other-{first}", ROWS)
            await _answer(tasksets.delete, other)
            if await _answer(tasksets.get, other):
                wrong.append(f"{other} is deleted and there")
            await asyncio.sleep(PAUSE_SECONDS)
        await _answer(tasksets.close_queue, QUEUE)
        stored = await _answer(tasksets.get, QUEUE, num_rows=len(ROWS) + 1)
    for _ in range(round(CATCH_UP_SECONDS / PAUSE_SECONDS)):
        copied = await asyncio.to_thread(_copied, arena, name)
        if copied == [*stored.rows] == ROWS:
            return wrong
        await asyncio.sleep(PAUSE_SECONDS)
    return [*wrong, f"the queue is {stored}", f"its copy is {copied}"]


async def _answer(call: Callable[..., Awaitable[Any]], name: str, **more: int) -> Any:
    """Asks until there is an answer; None where there is no such taskset (any more)."""
    while True:
        with suppress(Unavailable):
            try:
                return await call(name, **more)
            except NotFound:
                return None
        await asyncio.sleep(PAUSE_SECONDS)


def _copied(arena: Arena, name: str) -> list[Any]:
    file = arena.root / name / f"{QUEUE}.db"
    with suppress(sqlite3.OperationalError), closing(sqlite3.connect(file)) as copy:
        found = copy.execute(f"SELECT raw_task FROM {QUEUE} ORDER BY id").fetchall()
        return [json.loads(task) for (task,) in found]
    return []
