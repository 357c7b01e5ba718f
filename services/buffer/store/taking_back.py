"""Statements that let samples be trained on again that a person had taken out."""

from collections.abc import Iterable, Sequence

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from services.buffer.domain.stage import Stage
from services.buffer.domain.states import ExperienceState, ScopeState
from services.buffer.store.database import SCOPES_TOPIC, among, in_stage, notify, one_of
from services.buffer.store.queries import StoredExperience
from services.buffer.store.tables import NOW, experience, pipeline_scope
from trinity.types import StageKey

E, C = experience.c, pipeline_scope.c


async def find_includable(
    connection: AsyncConnection, key: StageKey, rows: Sequence[StoredExperience]
) -> list[StoredExperience]:
    """Excluded samples that have their advantage, or whose group has none that was shaped."""
    raw = {row.assignment_id for row in rows if row.parent_id is None}
    statement = sa.select(E.assignment_id).where(
        in_stage(experience, key), among(E.assignment_id, raw), E.revision > 0
    )
    shaped = set((await connection.execute(statement)).scalars()) if raw else set()
    return [
        row
        for row in rows
        if row.state is ExperienceState.EXCLUDED
        and (row.parent_id is not None or row.assignment_id not in shaped)
    ]


async def take_back(
    connection: AsyncConnection, stage: Stage, rows: Sequence[StoredExperience]
) -> int:
    """Give samples the state that they would have; answers how many."""
    awaits = stage.plan.config.buffer.await_feedback
    no_reward = sa.and_(E.reward.is_(None), sa.literal(awaits))
    state = sa.case(
        (E.parent_id.is_not(None), ExperienceState.READY.value),
        (no_reward, ExperienceState.AWAITING.value),
        else_=ExperienceState.RAW.value,
    )
    statement = (
        sa.update(experience)
        .where(
            in_stage(experience, stage.key),
            among(E.assignment_id, {row.assignment_id for row in rows}),
            among(E.experience_id, [row.experience_id for row in rows]),
            one_of(E.state, [ExperienceState.EXCLUDED]),
        )
        .values(state=state, reason="")
        .returning(E.experience_id)
    )
    return len((await connection.execute(statement)).all())


async def reopen_finished_scopes(
    connection: AsyncConnection, key: StageKey, assignment_ids: Iterable[str]
) -> None:
    """Let the pipeline work anew on groups that it had finished without these samples."""
    await connection.execute(
        sa.update(pipeline_scope)
        .where(
            in_stage(pipeline_scope, key),
            among(C.assignment_id, assignment_ids),
            one_of(C.state, [ScopeState.DONE, ScopeState.DEAD]),
        )
        .values(
            state=ScopeState.OPEN,
            attempts=0,
            error="",
            opened_at=NOW,
            metrics={},
            batched_step=None,
        )
    )
    await notify(connection, SCOPES_TOPIC)
