"""Statements on what selectors keep of a stage's tasksets: a ranking, or beliefs."""

from collections.abc import Sequence

import numpy as np
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from services.buffer.domain.difficulty import Beliefs, FloatVector, IntVector
from services.buffer.store.database import given, in_given_stage, in_stage, key_columns
from services.buffer.store.fetching import fetch_rows
from services.buffer.store.tables import task_beliefs, task_ranking
from trinity.types import StageKey

WORD_BYTES = 8


async def has_selection(connection: AsyncConnection, key: StageKey, taskset: str) -> bool:
    """Whether a ranking or beliefs are kept for the taskset."""
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
    """Keep the order in which the rows come."""
    values = {**key_columns(key), "taskset": taskset, "rows": rows_N.astype("<i8").tobytes()}
    await connection.execute(insert(task_ranking).values(values).on_conflict_do_nothing())


async def ranked_rows(
    connection: AsyncConnection, key: StageKey, taskset: str, places: Sequence[int]
) -> list[int]:
    """The rows at these places of the ranking; only the part that holds them is read."""
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
    """Keep the beliefs that a stage begins with."""
    values = {
        **key_columns(key),
        "taskset": taskset,
        "weak": _bytes(beliefs.weak_N),
        "strong": _bytes(beliefs.strong_N),
        "alpha": _bytes(beliefs.alpha_N),
        "beta": _bytes(beliefs.beta_N),
        "rho": beliefs.rho,
    }
    await connection.execute(insert(task_beliefs).values(values).on_conflict_do_nothing())


C = task_beliefs.c
_BELIEFS = sa.select(C.weak, C.strong, C.alpha, C.beta, C.capability, C.rho).where(
    in_given_stage(task_beliefs), C.taskset == sa.bindparam("given_taskset")
)


async def load_beliefs(connection: AsyncConnection, key: StageKey, taskset: str) -> Beliefs:
    """The beliefs as they are."""
    values = given(key, given_taskset=taskset)
    [(weak, strong, alpha, beta, capability, rho)] = await fetch_rows(connection, _BELIEFS, values)
    return Beliefs(
        weak_N=_numbers(weak),
        strong_N=_numbers(strong),
        alpha_N=_numbers(alpha),
        beta_N=_numbers(beta),
        capability=capability,
        rho=rho,
    )


async def update_beliefs(
    connection: AsyncConnection, key: StageKey, taskset: str, beliefs: Beliefs, num_updates: int
) -> None:
    """Keep what changed after `num_updates` more explore steps."""
    statement = (
        sa.update(task_beliefs)
        .where(_own(key, taskset))
        .values(
            alpha=_bytes(beliefs.alpha_N),
            beta=_bytes(beliefs.beta_N),
            capability=beliefs.capability,
            rho=beliefs.rho,
            num_updates=task_beliefs.c.num_updates + num_updates,
        )
    )
    await connection.execute(statement)


def _own(key: StageKey, taskset: str) -> sa.ColumnElement[bool]:
    return sa.and_(in_stage(task_beliefs, key), task_beliefs.c.taskset == taskset)


def _bytes(numbers: FloatVector) -> bytes:
    return numbers.astype("<f4").tobytes()


def _numbers(stored: bytes) -> FloatVector:
    """As stored, whoever asks: what was learned is rounded once, when it is kept."""
    return np.frombuffer(stored, dtype="<f4")
