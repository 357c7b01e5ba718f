"""Records a composed batch and commits the transaction."""

from collections.abc import Sequence
from contextlib import AsyncExitStack

from sqlalchemy.ext.asyncio import AsyncConnection

from services.buffer.domain.events import BatchComposed, Samples
from services.buffer.domain.stage import Stage
from services.buffer.domain.states import ExperienceState
from services.buffer.store.batches import BatchHead, BatchItem, insert_head, insert_items
from services.buffer.store.copying import FEW_ROWS
from services.buffer.store.database import notify, stage_topics
from services.buffer.store.experiences import set_states
from services.buffer.store.prepared import committing, unanswered
from services.buffer.store.progress import log_event
from services.buffer.store.stages import update_stage


async def record_batch(
    connection: AsyncConnection,
    stage: Stage,
    head: BatchHead,
    items: Sequence[BatchItem],
    *,
    taken: Sequence[str] = (),
    samples: Samples | None = None,
) -> None:
    """Stores a batch with its rows, logs it, notifies waiters, and commits.

    `taken` are experiences to mark as batched; `samples` are shown to people.
    """
    async with AsyncExitStack() as stack:
        if len(items) <= FEW_ROWS:
            await stack.enter_async_context(committing(connection))
        async with unanswered(connection):
            await set_states(connection, stage.key, taken, ExperienceState.BATCHED)
            await insert_head(connection, stage, head)
        await insert_items(connection, stage, head, items)
        if len(items) > FEW_ROWS:
            await stack.enter_async_context(committing(connection))
        await update_stage(connection, stage.key, recorded_step=head.step, num_stale=0)
        event = BatchComposed(step=head.step, num_rows=head.num_rows, metrics=head.metrics)
        await log_event(connection, stage.key, event)
        if samples is not None:
            await log_event(connection, stage.key, samples)
        await notify(connection, *stage_topics(stage.key))
