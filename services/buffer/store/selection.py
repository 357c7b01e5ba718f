"""Statements on the state of selectors for a stage's tasksets: a ranking, or beliefs."""

from collections.abc import Sequence

import numpy as np
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from services.buffer.domain.difficulty import Beliefs, FloatVector, IntVector
from services.buffer.store.database import given, in_given_stage, in_stage, key_columns
from services.buffer.store.prepared import fetch_binary
from services.buffer.store.tables import task_beliefs, task_ranking
from trinity.types import StageKey

WORD_BYTES = 8
PART_BYTES = 1024 * 1024
C = task_beliefs.c
COLUMNS = ("weak", "strong", "alpha", "beta")


async def has_selection(connection: AsyncConnection, key: StageKey, taskset: str) -> bool:
    """Returns True if a ranking or beliefs are stored for the taskset."""
    for table in (task_ranking, task_beliefs):
        statement = sa.select(table.c.taskset).where(
            in_stage(table, key), table.c.taskset == taskset
        )
        if (await connection.execute(statement)).first() is not None:
            return True
    return False


async def insert_ranking(
    connection: AsyncConnection, key: StageKey, taskset: str, rows_N: IntVector
) -> None:
    """Stores the order of the rows, unless one is stored already."""
    values = {**key_columns(key), "taskset": taskset, "rows": rows_N.astype("<i8").tobytes()}
    await connection.execute(insert(task_ranking).values(values).on_conflict_do_nothing())


async def ranked_rows(
    connection: AsyncConnection, key: StageKey, taskset: str, places: Sequence[int]
) -> list[int]:
    """Returns the rows at these places of the ranking; reads only the range that holds them."""
    first, last = min(places), max(places)
    part = sa.func.substring(
        task_ranking.c.rows, first * WORD_BYTES + 1, (last - first + 1) * WORD_BYTES
    )
    statement = sa.select(part).where(
        in_stage(task_ranking, key), task_ranking.c.taskset == taskset
    )
    rows = np.frombuffer((await connection.execute(statement)).scalar_one(), dtype="<i8")
    return [int(rows[place - first]) for place in places]


async def insert_beliefs(
    connection: AsyncConnection, key: StageKey, taskset: str, beliefs: Beliefs
) -> None:
    """Stores the initial beliefs of a stage, unless some are stored already."""
    values = {
        **key_columns(key),
        "taskset": taskset,
        **dict.fromkeys(COLUMNS, b""),
        "rho": beliefs.rho,
    }
    statement = insert(task_beliefs).values(values).on_conflict_do_nothing()
    if (await connection.execute(statement.returning(C.taskset))).first() is not None:
        await _store(connection, key, taskset, weak=beliefs.weak_N, strong=beliefs.strong_N)
        await _store(connection, key, taskset, alpha=beliefs.alpha_N, beta=beliefs.beta_N)


_OWN_BELIEFS = sa.and_(in_given_stage(task_beliefs), C.taskset == sa.bindparam("given_taskset"))
_SCALARS = sa.select(C.capability, C.rho, sa.func.octet_length(C.weak).label("num_bytes")).where(
    _OWN_BELIEFS
)
_PARTS = {
    name: sa.select(sa.func.substring(C[name], sa.bindparam("first"), sa.bindparam("count"))).where(
        _OWN_BELIEFS
    )
    for name in COLUMNS
}


async def load_beliefs(connection: AsyncConnection, key: StageKey, taskset: str) -> Beliefs:
    """Returns the beliefs, read in parts: a connection keeps memory for its largest row."""
    own = given(key, given_taskset=taskset)
    [(capability, rho, num_bytes)] = await fetch_binary(connection, _SCALARS, own)
    loaded = {}
    for name in COLUMNS:
        whole = bytearray()
        for first in range(0, num_bytes, PART_BYTES):
            values = {**own, "first": first + 1, "count": PART_BYTES}
            [(part,)] = await fetch_binary(connection, _PARTS[name], values)
            whole += part
        loaded[f"{name}_N"] = np.frombuffer(whole, dtype="<f4")
    return Beliefs(**loaded, capability=capability, rho=rho)


async def update_beliefs(
    connection: AsyncConnection, key: StageKey, taskset: str, beliefs: Beliefs, num_updates: int
) -> None:
    """Stores the beliefs after `num_updates` more explore steps."""
    statement = (
        sa.update(task_beliefs)
        .where(_own(key, taskset))
        .values(
            capability=beliefs.capability,
            rho=beliefs.rho,
            num_updates=task_beliefs.c.num_updates + num_updates,
        )
    )
    await connection.execute(statement)
    await _store(connection, key, taskset, alpha=beliefs.alpha_N, beta=beliefs.beta_N)


async def _store(
    connection: AsyncConnection, key: StageKey, taskset: str, **columns: FloatVector
) -> None:
    """Stores columns one by one: a connection keeps memory for its largest statement."""
    for name, numbers_N in columns.items():
        values = {name: _bytes(numbers_N)}
        await connection.execute(sa.update(task_beliefs).where(_own(key, taskset)).values(values))


def _own(key: StageKey, taskset: str) -> sa.ColumnElement[bool]:
    return sa.and_(in_stage(task_beliefs, key), task_beliefs.c.taskset == taskset)


def _bytes(numbers: FloatVector) -> bytes:
    return numbers.astype("<f4").tobytes()
