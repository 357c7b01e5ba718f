"""Statements on selector feedback: the rewards of tasks, for the selector that drew them."""

from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from services.buffer.domain.stage import Stage
from services.buffer.domain.states import AssignmentState, ExperienceState
from services.buffer.store.database import among, in_stage
from services.buffer.store.ready_rows import Place
from services.buffer.store.tables import assignment, batch_item, experience
from trinity.types import StageKey

A = assignment.c
E = experience.c
NOT_WON = (ExperienceState.SUPERSEDED, ExperienceState.LATE)


@dataclass(frozen=True, slots=True, kw_only=True)
class RolledOut:
    """A group that has ended and whose rewards its selector has not received."""

    assignment_id: str
    explore_step: int
    task_index: int
    rewards: list[float]


async def last_place_of_batch(connection: AsyncConnection, stage: Stage, step: int) -> Place | None:
    """Returns the place of the last group with a row in the batch of a step; None without one."""
    ids = sa.select(batch_item.c.experience_id).where(
        in_stage(batch_item, stage.key),
        batch_item.c.line == stage.line,
        batch_item.c.step == step,
        batch_item.c.experience_id.is_not(None),
    )
    chosen = list((await connection.execute(ids)).scalars())
    statement = (
        sa.select(E.explore_step, E.position)
        .where(in_stage(experience, stage.key), among(E.experience_id, chosen))
        .order_by(E.explore_step.desc(), E.position.desc())
        .limit(1)
    )
    row = (await connection.execute(statement)).first()
    return None if row is None else (row.explore_step, row.position)


async def unheard_groups(
    connection: AsyncConnection, key: StageKey, taskset: str, up_to: Place
) -> list[RolledOut]:
    """Returns groups up to this place whose rewards the selector has not received, in order."""
    statement = (
        sa.select(A.assignment_id, A.explore_step, A.task_index)
        .where(
            in_stage(assignment, key),
            A.awaits_feedback,
            A.taskset == taskset,
            A.state == AssignmentState.CLOSED,
            sa.tuple_(A.explore_step, A.position) <= up_to,
        )
        .order_by(A.explore_step, A.position)
    )
    rows = list(await connection.execute(statement))
    rewards = await _rewards(connection, key, [row.assignment_id for row in rows])
    return [
        RolledOut(
            assignment_id=row.assignment_id,
            explore_step=row.explore_step,
            task_index=row.task_index,
            rewards=rewards.get(row.assignment_id, []),
        )
        for row in rows
    ]


async def _rewards(
    connection: AsyncConnection, key: StageKey, ids: list[str]
) -> dict[str, list[float]]:
    """Returns the original rewards of samples in any later state, in the order of the runs."""
    statement = (
        sa.select(E.assignment_id, E.reward)
        .where(
            in_stage(experience, key),
            among(E.assignment_id, ids),
            E.revision == 0,
            E.reward.is_not(None),
            E.state.not_in(NOT_WON),
        )
        .order_by(E.run, E.step, E.suffix)
    )
    rewards: dict[str, list[float]] = {}
    for row in await connection.execute(statement):
        rewards.setdefault(row.assignment_id, []).append(row.reward)
    return rewards


async def mark_heard(connection: AsyncConnection, key: StageKey, ids: list[str]) -> None:
    """Marks groups as received by the selector."""
    await connection.execute(
        sa.update(assignment)
        .where(in_stage(assignment, key), among(A.assignment_id, ids))
        .values(awaits_feedback=False)
    )


async def tasks_of_step(
    connection: AsyncConnection, key: StageKey, taskset: str, explore_step: int
) -> set[int]:
    """Returns the tasks that an explore step has drawn from a taskset."""
    statement = sa.select(A.task_index).where(
        in_stage(assignment, key),
        A.kind == "train",
        A.taskset == taskset,
        A.explore_step == explore_step,
    )
    return set((await connection.execute(statement)).scalars())
