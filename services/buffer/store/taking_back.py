"""Statements that include samples again that a user had excluded."""

from collections.abc import Iterable, Sequence

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from services.buffer.domain.stage import Stage
from services.buffer.domain.states import ExperienceState, ScopeState
from services.buffer.store.database import SCOPES_TOPIC, among, in_stage, notify, of_stage, one_of
from services.buffer.store.queries import StoredExperience
from services.buffer.store.tables import NOW, experience, pipeline_scope
from trinity.types import FinishReason, StageKey

E, C = experience.c, pipeline_scope.c


async def find_includable(
    connection: AsyncConnection, key: StageKey, rows: Sequence[StoredExperience]
) -> list[StoredExperience]:
    """Returns excluded samples with an advantage, or whose group was not judged without them."""
    raw = {row.assignment_id for row in rows if row.parent_id is None}
    judged = await _judged(connection, key, raw) if raw else set()
    return [
        row
        for row in rows
        if row.state is ExperienceState.EXCLUDED
        and (row.parent_id is not None or row.assignment_id not in judged)
    ]


async def _judged(
    connection: AsyncConnection, key: StageKey, assignment_ids: Iterable[str]
) -> set[str]:
    """Returns the groups that have advantages, were filtered as a whole, or were cut."""
    samples = sa.select(E.assignment_id, E.revision).where(
        of_stage(experience, key),
        among(E.assignment_id, assignment_ids),
        sa.or_(E.revision > 0, sa.and_(E.state == ExperienceState.FILTERED, _IS_COMPARED)),
    )
    rows = (await connection.execute(samples)).all()
    filtered = {row.assignment_id for row in rows if row.revision == 0}
    scopes = sa.select(C.assignment_id, C.error).where(
        in_stage(pipeline_scope, key),
        among(C.assignment_id, assignment_ids),
        C.state == ScopeState.DONE,
    )
    done = (await connection.execute(scopes)).all()
    shaped = {row.assignment_id for row in rows if row.revision > 0}
    left_out = {row.assignment_id for row in done if row.assignment_id in filtered}
    # A scope that the pipeline finished has no error; that of a cut task has the reason.
    left_behind = {row.assignment_id for row in done if row.error}
    return shaped | left_out | left_behind


# The same rule as `Sample.why_not_compared`.
_IS_COMPARED = sa.and_(
    E.finish_reason != FinishReason.ABORT,
    sa.or_(E.reward.is_not(None), E.finish_reason == FinishReason.PROMPT_TRUNCATED),
)


async def take_back(
    connection: AsyncConnection, stage: Stage, rows: Sequence[StoredExperience]
) -> int:
    """Restores the state that the samples would have; returns their number."""
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
    """Lets the pipeline process groups again that it had finished without these samples."""
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
