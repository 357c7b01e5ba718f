"""Stages that use the batches or checkpoints of another stage."""

from services.buffer.domain.batches import BatchEnd
from services.buffer.domain.stage import Stage
from services.buffer.operations.batch_sources import record_batch
from services.buffer.store.batches import BatchHead, BatchItem, RecordedItem, find_batch, load_items
from services.buffer.store.curation import count_deleted
from services.buffer.store.reports import log_notice
from services.buffer.store.segments import count_retired
from services.buffer.store.stages import find_stage, get_stage, lock_stage
from services.buffer.store.training import (
    Checkpoint,
    RecordedVersion,
    done_versions,
    kept_checkpoints,
    versions_of,
)
from trinity.config.plan.parts import EvaluatedRun, StoredBatches
from trinity.errors import PreconditionFailed
from trinity.runtime.sql import Connection
from trinity.types import StageKey
from trinity.weights.identity import same_weights

INITIAL_CHECKPOINT = Checkpoint(step=0, incarnation=0, path="", manifest_sha256=b"")
"""The weights that the source stage started from, which need no checkpoint."""
ALL_ITEMS = 2**31 - 1


async def benched_checkpoints(connection: Connection, stage: Stage) -> list[Checkpoint]:
    """Returns the checkpoints still to evaluate, newest first; the newest is always among them.

    Raises: PreconditionFailed when there is no checkpoint at all.
    """
    wanted = await wanted_checkpoints(connection, stage)
    benched = stage.plan.benched
    assert benched is not None, "the stage evaluates checkpoints"
    known = {*benched.known_versions, *await done_versions(connection, stage.key)}
    return [wanted[0], *(checkpoint for checkpoint in wanted[1:] if checkpoint.step not in known)]


async def wanted_checkpoints(connection: Connection, stage: Stage) -> list[Checkpoint]:
    """Returns the checkpoints that the stage evaluates, newest first.

    Raises: PreconditionFailed when there is none.
    """
    benched, explorer = stage.plan.benched, stage.plan.config.explorer
    assert benched is not None, "the stage evaluates checkpoints"
    source = await find_stage(connection, source_key(stage.key.tenant, benched))
    kept = await kept_checkpoints(connection, source) if source is not None else []
    newest_of_step = {checkpoint.step: checkpoint for checkpoint in reversed(kept)}
    found = [newest_of_step[step] for step in sorted(newest_of_step, reverse=True)]
    if explorer.bench_on_latest_checkpoint:
        found = found[:1]
    elif explorer.eval_on_startup:
        found.append(INITIAL_CHECKPOINT)
    if not found:
        raise PreconditionFailed(
            f"stage {benched.stage} has no checkpoint to evaluate: train it first, with a "
            "`trainer.save_interval`"
        )
    return found


def source_key(tenant: str, stored: StoredBatches | EvaluatedRun) -> StageKey:
    """Returns the key of the stage that recorded the batches, or wrote the checkpoints."""
    return StageKey(tenant=tenant, experiment_id=stored.experiment_id, stage=stored.stage)


async def find_source(connection: Connection, tenant: str, stored: StoredBatches) -> Stage:
    """Returns the stage whose batches are to be trained on again.

    It is locked, so that their contents cannot be deleted before this transaction ends.

    Raises: PreconditionFailed when a batch, or the checkpoint before the first, is missing.
    """
    key = source_key(tenant, stored)
    if await find_stage(connection, key) is None:
        raise PreconditionFailed(f"there is no stage {key.stage} whose batches could be used")
    source = await lock_stage(connection, key)
    if not 1 <= stored.first_step <= stored.last_step <= source.recorded_step:
        raise PreconditionFailed(
            f"stage {key.stage} has recorded the batches of steps 1..{source.recorded_step}, not "
            f"all of {stored.first_step}..{stored.last_step}"
        )
    await _check_start(connection, source, stored)
    if num_deleted := await count_deleted(connection, source, stored.first_step, stored.last_step):
        raise PreconditionFailed(
            f"{num_deleted} samples of the batches of steps {stored.first_step}.."
            f"{stored.last_step} were deleted: choose steps without them"
        )
    num_retired, last = await count_retired(connection, source, stored.first_step, stored.last_step)
    if num_retired:
        raise PreconditionFailed(
            f"the contents of {num_retired} samples of the batches of steps {stored.first_step}.."
            f"{stored.last_step} were removed (`buffer.keep_steps: "
            f"{source.plan.config.buffer.keep_steps}`): choose steps from {last + 1} on"
        )
    return source


async def _check_start(connection: Connection, source: Stage, stored: StoredBatches) -> None:
    if stored.first_step == 1 or await _start(connection, source, stored):
        return
    kept = sorted(checkpoint.step + 1 for checkpoint in await kept_checkpoints(connection, source))
    begin = ", ".join(str(step) for step in [1, *kept] if step <= source.recorded_step)
    raise PreconditionFailed(
        f"there is no checkpoint of step {stored.first_step - 1} to begin step "
        f"{stored.first_step} from: begin with step {begin.replace(', ', ' or ')}"
    )


async def _start(connection: Connection, source: Stage, stored: StoredBatches) -> list[Checkpoint]:
    """Returns checkpoints that the first stored step may begin from, newest incarnation first."""
    before = stored.first_step - 1
    return [
        checkpoint
        for checkpoint in await kept_checkpoints(connection, source)
        if checkpoint.step == before
    ]


async def starting_checkpoints(connection: Connection, stage: Stage) -> list[Checkpoint]:
    """Returns checkpoints for a stage that trains stored batches or evaluates checkpoints."""
    if stage.plan.benched is not None:
        return await benched_checkpoints(connection, stage)
    stored = stage.plan.stored_batches
    if stored is None:
        return []
    source = await get_stage(connection, source_key(stage.key.tenant, stored))
    return await _start(connection, source, stored)


async def compose_stored(connection: Connection, stage: Stage, step: int) -> BatchHead | BatchEnd:
    """Records a copy of the stored batch of `step`; the caller holds the lock.

    Raises: PreconditionFailed for a step before the first.
    """
    stored = stage.plan.stored_batches
    assert stored is not None, "the stage trains stored batches"
    if step < stored.first_step:
        raise PreconditionFailed(
            f"step {step} is not among the stored batches {stored.first_step}..{stored.last_step}: "
            f"the checkpoint of step {stored.first_step - 1} cannot be used, see the trainer's log"
        )
    if step > stage.recorded_step + 1:
        raise PreconditionFailed(f"step {stage.recorded_step + 1} comes before step {step}")
    if step > stored.last_step:
        return BatchEnd("drained", f"the stored batches up to step {stored.last_step} are trained")
    source = await get_stage(connection, source_key(stage.key.tenant, stored))
    recorded = await find_batch(connection, source.key, step)
    assert recorded is not None, "it was there when the stage was opened"
    items = await load_items(connection, source, step, first=0, count=ALL_ITEMS)
    head = BatchHead(
        step=step,
        incarnation=stage.incarnation,
        num_rows=recorded.num_rows,
        metrics=recorded.metrics,
        oldest_version=recorded.oldest_version,
    )
    return await record_batch(connection, stage, head, [_copy_of(item) for item in items])


def _copy_of(item: RecordedItem) -> BatchItem:
    return BatchItem(
        advantage=item.use.advantage,
        weight=item.use.weight,
        experience_id=item.experience_id,
        taskset_id=item.taskset_id,
        row_index=item.row_index,
    )


async def compare_with_source(connection: Connection, stage: Stage, new: RecordedVersion) -> None:
    """Logs whether training again produced the same weights as before."""
    stored = stage.plan.stored_batches
    if stored is None:
        return
    source = await get_stage(connection, source_key(stage.key.tenant, stored))
    before = await versions_of(connection, source, new.version)
    if not before:
        text = f"version {new.version} was never published before, so it cannot be compared"
    elif any(same_weights(version, new) for version in before):
        text = f"version {new.version} has the same weights as before, bit for bit"
    else:
        text = f"version {new.version} has other weights than before"
    await log_notice(connection, stage.key, text)
