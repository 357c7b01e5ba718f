"""Operations of the trainer: incarnations, versions, step reports, checkpoints, the end."""

from collections.abc import Sequence
from dataclasses import dataclass

from services.buffer.domain.sample_statistics import SamplePopulation, population_metrics
from services.buffer.domain.stage import AssignmentKind, Stage, StageState
from services.buffer.domain.tasks import StepTrained
from services.buffer.operations.evaluation import finish_if_done, open_evaluations
from services.buffer.operations.retrain import compare_with_source, starting_checkpoints
from services.buffer.store.assignments import cancel_open, pinned_versions
from services.buffer.store.batches import (
    RowFeedback,
    find_with_stage,
    insert_report,
    store_feedback,
    was_trained_before,
)
from services.buffer.store.database import RETENTION_TOPIC, notify, stage_topics
from services.buffer.store.reports import log_event, log_notice
from services.buffer.store.sample_statistics import (
    compared_step,
    last_settled_step,
    load_population,
)
from services.buffer.store.stages import get_stage, lock_stage, update_stage
from services.buffer.store.training import (
    Checkpoint,
    RecordedVersion,
    announce_removable,
    best_versions,
    drop_checkpoint,
    insert_checkpoint,
    insert_incarnation,
    insert_version,
    kept_checkpoints,
    newest_restore,
    newest_version,
    versions_of,
)
from trinity.errors import InvalidRequest, PreconditionFailed, Superseded
from trinity.runtime.sql import Connection
from trinity.types import StageKey
from trinity.weights.identity import same_weights

SHOWN_STEPS = 64
"""Number of newest explore steps that are shown to people together."""


async def new_shift_metrics(connection: Connection, stage: Stage) -> dict[str, float]:
    """Returns metrics of the explore steps settled since the last call, each step once.

    The caller holds the stage's lock. This is kept out of composing a batch, where the trainer
    would wait for it.
    """
    if not stage.plan.needs_rollout:
        return {}
    before = await compared_step(connection, stage.key)
    settled = await last_settled_step(connection, stage)
    if settled <= before:
        return {}
    await update_stage(connection, stage.key, compared_step=settled)
    population = await load_population(connection, stage, after=before, up_to=settled)
    return {} if population is None else population_metrics(population)


async def load_newest_population(connection: Connection, stage: Stage) -> SamplePopulation | None:
    """Returns the population of the newest settled explore steps together."""
    settled = await last_settled_step(connection, stage)
    return await load_population(
        connection, stage, after=max(settled - SHOWN_STEPS, 0), up_to=settled
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class IncarnationStart:
    """The state from which a new incarnation resumes."""

    incarnation: int
    line: int
    checkpoints: Sequence[Checkpoint]
    recorded_step: int
    newest_version: RecordedVersion | None
    finished_step: int
    restored: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionsToKeep:
    """The versions whose files must stay."""

    pinned: Sequence[int]
    """All of them: those that open work needs, and the best."""
    best: Sequence[int]
    """The best evaluated ones, the best first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingEnd:
    """The state of a stage after its training."""

    state: StageState
    reason: str
    best: Sequence[int]


def check_incarnation(stage: Stage, incarnation: int) -> None:
    """Checks that the incarnation is the current one.

    Raises: Superseded when a newer trainer has taken over.
    """
    if incarnation < stage.incarnation:
        raise Superseded(
            f"incarnation {incarnation} of the trainer was replaced by {stage.incarnation}"
        )
    if incarnation > stage.incarnation or incarnation < 1:
        raise InvalidRequest(f"the trainer's incarnation {incarnation} was never given out")


async def lock_current_incarnation(
    connection: Connection, key: StageKey, incarnation: int
) -> Stage:
    """Locks and returns the stage if this incarnation owns it.

    Raises: Superseded when a newer one exists.
    """
    stage = await lock_stage(connection, key)
    check_incarnation(stage, incarnation)
    return stage


async def begin_incarnation(
    connection: Connection, key: StageKey, trainer_id: str
) -> IncarnationStart:
    """Fences off the previous incarnation; no lease is granted until the new one has published.

    Raises: PreconditionFailed when the stage was cancelled or has failed.
    """
    stage = await lock_stage(connection, key)
    if stage.state in (StageState.CANCELLED, StageState.FAILED):
        raise PreconditionFailed(f"stage {key.stage} {stage.state}: {stage.reason}")
    number = stage.incarnation + 1
    await insert_incarnation(connection, stage, number, trainer_id)
    await update_stage(connection, key, incarnation=number, published=None)
    await notify(connection, *stage_topics(key))
    return IncarnationStart(
        incarnation=number,
        line=stage.line,
        checkpoints=[
            *await kept_checkpoints(connection, stage),
            *await starting_checkpoints(connection, stage),
        ],
        recorded_step=stage.recorded_step,
        newest_version=await newest_version(connection, stage),
        finished_step=stage.finished_step or 0,
        restored=await newest_restore(connection, key),
    )


async def record_version(
    connection: Connection, key: StageKey, new: RecordedVersion
) -> VersionsToKeep:
    """Records published weights, so that work can be leased; returns the versions to keep."""
    stage = await lock_current_incarnation(connection, key, new.incarnation)
    if new.version > stage.recorded_step:
        raise InvalidRequest(
            f"version {new.version} cannot exist: batches are recorded up to step "
            f"{stage.recorded_step}"
        )
    before = await versions_of(connection, stage, new.version)
    await _check_weights(connection, stage, new, before)
    await insert_version(connection, stage, new)
    await compare_with_source(connection, stage, new)
    newest = max(new.version, stage.published or 0)
    await update_stage(connection, key, published=newest, wants_version=False)
    if stage.is_open and stage.is_evaluated(new.version):
        await open_evaluations(connection, stage, new.version)
    await notify(connection, *stage_topics(key))
    return await _kept_versions(connection, stage)


async def _kept_versions(connection: Connection, stage: Stage) -> VersionsToKeep:
    best = await best_versions(connection, stage)
    pinned = {*await pinned_versions(connection, stage.key), *best}
    return VersionsToKeep(pinned=sorted(pinned), best=best)


async def _check_weights(
    connection: Connection, stage: Stage, new: RecordedVersion, before: Sequence[RecordedVersion]
) -> None:
    """Checks the hash of a version: it may differ, with a notice, only between incarnations."""
    for old in before:
        if old.incarnation == new.incarnation and not same_weights(old, new):
            raise InvalidRequest(f"version {new.version} was recorded with other weights")
    if before and not any(same_weights(old, new) for old in before):
        text = (
            f"version {new.version} came out with other weights when its steps were trained again; "
            "rollouts with the earlier weights are slightly off-policy"
        )
        await log_notice(connection, stage.key, text)


async def report_step(
    connection: Connection,
    key: StageKey,
    incarnation: int,
    step: int,
    metrics: dict[str, float],
    rows: Sequence[RowFeedback],
) -> VersionsToKeep:
    """Records that a step is trained; returns the versions to keep."""
    stage, head = await find_with_stage(connection, key, step, locks=True)
    check_incarnation(stage, incarnation)
    if head is None:
        raise InvalidRequest(f"step {step} has no batch")
    kept = await _kept_versions(connection, stage)
    if await insert_report(connection, stage, step, metrics):
        event = StepTrained(
            step=step,
            incarnation=incarnation,
            metrics=metrics | await new_shift_metrics(connection, stage),
            replayed=await was_trained_before(connection, stage, step),
        )
        await store_feedback(connection, stage, head, rows)
        await update_stage(connection, key, trained_step=max(step, stage.trained_step))
        await log_event(connection, key, event)
    return kept


async def commit_checkpoint(
    connection: Connection, key: StageKey, new: Checkpoint
) -> Sequence[Checkpoint]:
    """Makes a checkpoint the one to resume from; returns those whose files may be deleted."""
    stage = await lock_current_incarnation(connection, key, new.incarnation)
    if new.step > stage.recorded_step:
        raise InvalidRequest(f"step {new.step} has no batch")
    await insert_checkpoint(connection, stage, new)
    if num_kept := stage.plan.config.trainer.max_checkpoints_to_keep:
        kept = await kept_checkpoints(connection, stage)
        # The new one stays: the incarnation that wrote it did not resume from later steps' ones.
        others = [checkpoint for checkpoint in kept if checkpoint != new]
        for old in others[num_kept - 1 :]:
            await drop_checkpoint(connection, stage, old)
    await notify(connection, RETENTION_TOPIC)
    return await announce_removable(connection, stage, new)


async def finish_training(
    connection: Connection, key: StageKey, incarnation: int, step: int
) -> TrainingEnd:
    """Ends the training; the last weights are evaluated unless they already were.

    Called again it says how far the stage is.

    Raises: InvalidRequest when their version is not recorded.
    """
    stage = await lock_current_incarnation(connection, key, incarnation)
    if stage.is_open:
        if stage.finished_step != step:
            await _end_training(connection, stage, step)
        await finish_if_done(connection, stage)
        stage = await get_stage(connection, key)
    best = await best_versions(connection, stage)
    return TrainingEnd(state=stage.state, reason=stage.reason, best=best)


async def _end_training(connection: Connection, stage: Stage, step: int) -> None:
    if not await versions_of(connection, stage, step):
        raise InvalidRequest(f"version {step} is not recorded: publish the last weights first")
    await update_stage(connection, stage.key, finished_step=step)
    reason = f"training has finished with step {step}"
    await cancel_open(connection, stage.key, reason, [AssignmentKind.TRAIN])
    if stage.plan.benched is None or stage.is_evaluated(step):
        await open_evaluations(connection, stage, step)
    await notify(connection, *stage_topics(stage.key))
