"""Ends stages: finished when the last evaluation is done, cancelled, or failed."""

from services.buffer.domain.stage import AssignmentKind, Stage, StageState
from services.buffer.domain.tasks import NoticeEvent
from services.buffer.store.assignments import cancel_open
from services.buffer.store.database import RETENTION_TOPIC, notify, stage_topics
from services.buffer.store.reports import log_event
from services.buffer.store.stages import get_stage, update_stage
from services.buffer.store.training import cancel_evaluations, open_versions
from trinity.runtime.sql import Connection


async def finish_if_done(connection: Connection, stage: Stage) -> None:
    """Ends a stage whose training is finished and whose evaluations are all done."""
    current = await get_stage(connection, stage.key)
    if not current.is_open or current.finished_step is None:
        return
    if not await open_versions(connection, stage.key):
        await update_stage(connection, stage.key, state=StageState.FINISHED)
        await notify(connection, RETENTION_TOPIC)


async def end_stage(connection: Connection, stage: Stage, state: StageState, reason: str) -> int:
    """Revokes all work and stores the reason; returns how many assignments were open."""
    num_revoked = await cancel_open(connection, stage.key, reason, tuple(AssignmentKind))
    await cancel_evaluations(connection, stage.key)
    await update_stage(connection, stage.key, state=state, reason=reason)
    await log_event(
        connection, stage.key, NoticeEvent(text=f"stage {stage.key.stage} {state}: {reason}")
    )
    await notify(connection, *stage_topics(stage.key), RETENTION_TOPIC)
    return num_revoked
