"""Sources of the rows of a batch: data, expert rows, fresh rollouts, the replay pool."""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from services.buffer.domain.batches import NUM_LONG_PROMPTS, MeasuredRow
from services.buffer.domain.replay import (
    ReplayCandidate,
    ReplaySelection,
    candidates_of,
    select_replay_batch,
)
from services.buffer.domain.stage import ExperienceState, Stage, due_explore_step, planned_rows
from services.buffer.domain.tasks import BatchComposed, SamplesEvent
from services.buffer.operations.explore_steps import draw_rows
from services.buffer.store.assignments import task_at
from services.buffer.store.batches import (
    BatchHead,
    BatchItem,
    any_metric_above_zero,
    insert_head,
    insert_items,
    with_digests,
)
from services.buffer.store.database import notify, stage_topics, work_topic
from services.buffer.store.experiences import set_states
from services.buffer.store.ready_rows import Place, filter_stale, place_of_fresh
from services.buffer.store.replay import enter_pool, leave_pool, load_unused, load_used
from services.buffer.store.reports import log_event, log_notice
from services.buffer.store.stages import stage_tasksets, update_stage
from services.buffer.workers.functions import FunctionRunner
from trinity.config.plan.parts import ResolvedExperienceBuffer, ResolvedReplay
from trinity.runtime.sql import Connection

NUM_STALE = "sample/num_stale_rows"
NUM_EXPERT = "sample/num_expert_rows"
NUM_REPLAYED = "replay/num_replayed_rows"
NUM_WAITING = "replay/num_waiting_rows"
NUM_RETIRED = "replay/num_retired_rows"
NUM_DROPPED = "replay/num_dropped_rows"
USES = "replay/use_count"


async def draw_data(
    connection: Connection, stage: Stage, buffer: ResolvedExperienceBuffer, *, step: int, count: int
) -> list[BatchItem]:
    """Returns the rows of data that belong to a step: a function of its number alone."""
    taskset = (await stage_tasksets(connection, stage.key))[buffer.name]
    first = (step - 1) * count
    drawn = await draw_rows(
        connection, stage.key, taskset, buffer.selector, stage.seed, first=first, count=count
    )
    return [
        BatchItem(taskset_id=taskset.taskset_id, row_index=row, advantage=0.0, weight=1.0)
        for row in drawn
    ]


async def expert_rows(connection: Connection, stage: Stage, step: int) -> list[BatchItem]:
    """Returns the rows of data that follow the rollouts in a batch; empty without a mix."""
    buffer = stage.plan.expert_buffer
    if buffer is None:
        return []
    count = stage.plan.num_expert_rows
    return await draw_data(connection, stage, buffer, step=step, count=count)


async def filter_stale_rows(
    connection: Connection,
    stage: Stage,
    step: int,
    before: Place | None,
    *,
    is_incomplete: bool = False,
) -> Stage:
    """Leaves out ready rows that are too old for `step`, and counts them for its batch.

    Rows without a version stay, since waiting does not make them fresher.

    A row that is too old now is too old for every later step. In a stage with fixed order, rows
    after the last row of the batch stay for the next one, so that no count depends on the order of
    arrival; with replay and with whole explore steps, `before` ensures that. A batch that
    `is_incomplete` takes rows of any place.
    """
    oldest = stage.plan.oldest_version(step)
    if oldest == 0 or step > stage.total_train_steps:
        return stage
    last = None
    is_cut = stage.is_ordered and not (stage.plan.trains_explore_steps or is_incomplete)
    if is_cut and stage.plan.replay is None:
        number = stage.plan.num_rollout_rows
        last = await place_of_fresh(connection, stage, number, oldest=oldest, before=before)
    reason = _why_stale(stage, step)
    count = await filter_stale(
        connection, stage, oldest=oldest, before=before, up_to=last, reason=reason
    )
    if not count:
        return stage
    if not stage.num_stale and not await any_metric_above_zero(connection, stage, NUM_STALE):
        text = f"{count} rows are left out: {reason}; all of them are counted in {NUM_STALE}"
        await log_notice(connection, stage.key, text)
    stage = dataclasses.replace(stage, num_stale=stage.num_stale + count)
    await update_stage(connection, stage.key, num_stale=stage.num_stale)
    # Rows left out free credit for the next explore step.
    await notify(connection, work_topic(stage.key))
    return stage


def _why_stale(stage: Stage, step: int) -> str:
    most = stage.plan.algorithm.sampling.max_staleness
    return (
        f"made by weights older than version {stage.plan.oldest_version(step)}, the oldest that "
        f"train step {step} takes with `max_staleness: {most}`"
    )


async def note_long_prompts(
    connection: Connection, stage: Stage, rows: Sequence[MeasuredRow]
) -> None:
    """Logs the first prompt of the stage that was too long to be answered, before its batch."""
    long = [row for row in rows if row.has_long_prompt]
    if not long or await any_metric_above_zero(connection, stage, NUM_LONG_PROMPTS):
        return
    name, index = await task_at(connection, stage.key, long[0].explore_step, long[0].position)
    text = (
        f"{len(long)} of {len(rows)} rows have a prompt that is longer than "
        f"`model.max_prompt_tokens: {stage.plan.max_prompt_tokens}` and are not trained on, the "
        f"first that of task {index} of {name}; all of them are counted in {NUM_LONG_PROMPTS}"
    )
    await log_notice(connection, stage.key, text)


async def log_incomplete(connection: Connection, stage: Stage, step: int, num_rows: int) -> None:
    """Logs that a batch has fewer rollouts than planned, as the trainer waits no longer."""
    of_all = f" of {stage.plan.num_rollout_rows} rollouts"
    if stage.plan.trains_explore_steps:
        of_all = " rollouts, not all of its explore step"
    text = (
        f"train step {step} takes {num_rows}{of_all}: no more "
        f"were ready after {stage.plan.experience_buffer.incomplete_after:g} s (`max_read_timeout`)"
    )
    await log_notice(connection, stage.key, text)


def sampling_metrics(stage: Stage) -> dict[str, float]:
    """Returns the number of expert rows in a batch, and of stale rows left out before it."""
    figures = {}
    if stage.plan.num_expert_rows:
        figures[NUM_EXPERT] = float(stage.plan.num_expert_rows)
    if stage.plan.algorithm.sampling.max_staleness is not None:
        figures[NUM_STALE] = float(stage.num_stale)
    return figures


def version_for_refill(stage: Stage, explore_step: int) -> int:
    """Returns a weights version for more tasks of an explore step, fresh enough to train on."""
    if stage.plan.has_dynamic_sync:
        return max(stage.step_version, stage.published or 0)
    required = stage.required_version(explore_step)
    if stage.plan.algorithm.sampling.max_staleness is None:
        return required
    return max(required, stage.version_after(stage.recorded_step))


@dataclass(frozen=True, slots=True)
class ReplayAttempt:
    """A choice among the samples up to a place."""

    stage: Stage
    selection: ReplaySelection
    before: Place | None
    is_enough: bool
    """True if all due rows are there."""


def candidate_bounds(stage: Stage, step: int) -> Iterator[Place | None]:
    """Yields places up to which a batch may take samples, to be tried until there are enough.

    In a stage with fixed order these are the due explore steps, and later ones only if the due ones
    have too few rows: the batch must not depend on the order of arrivals.
    """
    if not stage.is_ordered:
        yield None
        return
    for explore_step in range(due_explore_step(stage, step), stage.explore_step + 1):
        yield explore_step + 1, 0


async def select_candidates(
    connection: Connection,
    stage: Stage,
    step: int,
    before: Place | None,
    priorities: FunctionRunner,
) -> ReplayAttempt:
    """Chooses among the candidates for the batch of `step`; only stale rows are changed.

    Raises: FunctionFailed.
    """
    settings = _replay(stage)
    stage = await filter_stale_rows(connection, stage, step, before)
    oldest = stage.plan.oldest_version(step)
    unused = await load_unused(connection, stage, before)
    used = await load_used(connection, stage)
    by_token = stage.plan.masks_stale_tokens
    aged = ((row, row.newest_version if by_token else row.version) for row in used)
    stale = [row for row, version in aged if version is not None and version < oldest]
    stale_ids = {row.experience_id for row in stale}
    waiting = [*unused, *(row for row in used if row.experience_id not in stale_ids)]
    computed = await priorities.compute_priorities(
        stage.key.tenant,
        settings.priority_fn,
        settings.priority_fn_args,
        candidates_of(waiting, stage.seed),
    )
    size = stage.plan.num_rollout_rows
    choice = select_replay_batch(waiting, computed, settings, step=step, size=size)
    choice = replace(choice, retired=[*choice.retired, *stale])
    num_there = len(choice.taken if stage.is_ordered else choice.unused)
    return ReplayAttempt(
        stage, choice, before, is_enough=num_there >= max(planned_rows(stage, step), 1)
    )


async def apply_selection(
    connection: Connection, stage: Stage, choice: ReplaySelection, step: int
) -> dict[str, float]:
    """Applies a choice to the database; returns metrics for the batch."""
    replay, key = _replay(stage), stage.key
    fresh = _ids(choice.unused)
    await set_states(connection, key, fresh, ExperienceState.BATCHED)
    if replay.cooldown_steps is not None:
        await enter_pool(connection, key, fresh)
    await leave_pool(connection, key, _ids(choice.retired))
    await _filter_rows(connection, stage, choice.dropped, _why_dropped(replay, step))
    unwanted = f"`priority_fn: {replay.priority_fn}` gave it no priority"
    await _filter_rows(connection, stage, choice.refused, unwanted)
    return _replay_metrics(choice)


async def _filter_rows(
    connection: Connection, stage: Stage, rows: Sequence[ReplayCandidate], reason: str
) -> None:
    if not rows:
        return
    await set_states(connection, stage.key, _ids(rows), ExperienceState.FILTERED, reason)
    if not await any_metric_above_zero(connection, stage, NUM_DROPPED):
        text = f"{len(rows)} rows are left out: {reason}; all of them are counted in {NUM_DROPPED}"
        await log_notice(connection, stage.key, text)
    # Rows left out free credit for the next explore step.
    await notify(connection, work_topic(stage.key))


def _why_dropped(replay: ResolvedReplay, step: int) -> str:
    return (
        f"the last in order when the batch of train step {step} was composed, and the replay "
        f"buffer has room for {replay.capacity} (`capacity`, `when_full: drop`)"
    )


def _replay_metrics(choice: ReplaySelection) -> dict[str, float]:
    uses = [row.num_uses for row in choice.taken]
    return {
        NUM_REPLAYED: float(len(choice.replayed)),
        NUM_WAITING: float(choice.num_kept),
        NUM_RETIRED: float(len(choice.retired)),
        NUM_DROPPED: float(len(choice.dropped) + len(choice.refused)),
        f"{USES}/mean": sum(uses) / len(uses),
        f"{USES}/max": float(max(uses)),
    }


def _replay(stage: Stage) -> ResolvedReplay:
    assert stage.plan.replay is not None, "its batches go by priority"
    return stage.plan.replay


def _ids(rows: Sequence[ReplayCandidate]) -> list[str]:
    return [row.experience_id for row in rows]


async def record_batch(
    connection: Connection,
    stage: Stage,
    head: BatchHead,
    items: Sequence[BatchItem],
    *,
    taken: Sequence[str] = (),
    samples: SamplesEvent | None = None,
) -> BatchHead:
    """Stores a batch with its rows and their digests, logs it and notifies waiters.

    `taken` are experiences to mark as batched; `samples` are shown to people.
    """
    await set_states(connection, stage.key, taken, ExperienceState.BATCHED)
    head, items = await with_digests(connection, stage, head, items)
    await insert_head(connection, stage, head)
    await insert_items(connection, stage, head, items)
    await update_stage(connection, stage.key, recorded_step=head.step, num_stale=0)
    event = BatchComposed(step=head.step, num_rows=head.num_rows, metrics=head.metrics)
    await log_event(connection, stage.key, event)
    if samples is not None:
        await log_event(connection, stage.key, samples)
    await notify(connection, *stage_topics(stage.key))
    return head
