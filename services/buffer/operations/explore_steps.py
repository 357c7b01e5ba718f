"""Explore steps: drawing of their tasks, straggler cutoff, and the end of exploring."""

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from services.buffer.domain.admission import (
    STRAGGLER_REASON,
    AdmissionRefusal,
    ExploreStepTasks,
    can_cut_stragglers,
    num_tasks_to_draw,
)
from services.buffer.domain.batches import VersionRequested
from services.buffer.domain.stage import ExperienceState, Stage, StageState
from services.buffer.domain.task_draws import (
    FloatVector,
    IntVector,
    PassRateBeliefs,
    TasksetDraws,
    draw_row_numbers,
    interleave,
    seeded_generator,
)
from services.buffer.operations.evaluation import open_evaluations
from services.buffer.store.database import (
    RETENTION_TOPIC,
    SCOPES_TOPIC,
    batch_topic,
    notify,
    stage_topics,
)
from services.buffer.store.pipeline import hold_scopes, open_scopes
from services.buffer.store.ready_rows import ReadyRow, count_state, first_unfinished, least_used
from services.buffer.store.reports import log_notice
from services.buffer.store.selection import (
    RolledOut,
    groups_awaiting_feedback,
    has_selection,
    insert_beliefs,
    insert_ranking,
    last_place_of_batch,
    load_beliefs,
    load_features,
    mark_feedback_received,
    ranked_rows,
    tasks_of_step,
    update_beliefs,
)
from services.buffer.store.stages import StageTaskset, lock_stage, stage_tasksets, update_stage
from services.buffer.store.stragglers import (
    count_kept_runs,
    cut_open_tasks,
    drop,
    seconds_since_ended,
    tasks_by_step,
    with_ended_runs,
)
from services.buffer.store.tasksets import Taskset, get_taskset
from services.buffer.store.training import RecordedVersion, insert_version, open_versions
from trinity.config.plan.parts import ResolvedSelector, ResolvedTaskset, train_steps_from
from trinity.config.schema.choices import DifficultyConfig
from trinity.runtime.members import WaitKind
from trinity.runtime.sql import Connection
from trinity.types import StageKey

INITIAL_VERSION = RecordedVersion(version=0, incarnation=0, weights_sha256=b"")
"""The initial weights, which no trainer publishes: explorers already have them."""
MIX = 1
"""Seed that separates the mixing of tasksets from the random draws of their selectors."""


async def cut_stragglers(connection: Connection, key: StageKey) -> int:
    """Cuts the open tasks of steps that have had enough for `wait_after_min` seconds.

    Returns the number of tasks left behind.
    """
    stage = await lock_stage(connection, key)
    if not stage.is_open:
        return 0
    num_cut = 0
    for tasks in await tasks_by_step(connection, key, only_open=True):
        if can_cut_stragglers(tasks, stage.plan.num_droppable_tasks) and await _is_over(
            connection, stage, tasks
        ):
            num_cut += await _cut(connection, stage, tasks)
    if num_cut:
        await notify(connection, SCOPES_TOPIC, *stage_topics(key))
    return num_cut


async def count_tasks_to_draw(connection: Connection, stage: Stage) -> int:
    """Returns the number of tasks that the next explore step begins with."""
    if not stage.plan.num_droppable_tasks or stage.plan.trains_explore_steps:
        return stage.plan.config.buffer.batch_size
    earlier = await tasks_by_step(connection, stage.key, only_open=False)
    num_kept = await count_kept_runs(connection, stage.key) if _keeps_ended_runs(stage) else 0
    return num_tasks_to_draw(stage, earlier, num_kept)


def _keeps_ended_runs(stage: Stage) -> bool:
    return stage.plan.config.explorer.over_rollout.return_partial_tasks


async def _is_over(connection: Connection, stage: Stage, tasks: ExploreStepTasks) -> bool:
    number = tasks.num_drawn - stage.plan.num_droppable_tasks
    waited = await seconds_since_ended(connection, stage.key, tasks.explore_step, number)
    return waited is None or waited >= stage.plan.config.explorer.over_rollout.wait_after_min


async def _cut(connection: Connection, stage: Stage, tasks: ExploreStepTasks) -> int:
    key = stage.key
    cut = await cut_open_tasks(connection, key, tasks.explore_step, STRAGGLER_REASON)
    kept = await with_ended_runs(connection, key, cut) if _keeps_ended_runs(stage) else []
    await drop(
        connection, key, [task for task in cut if task.assignment_id not in kept], STRAGGLER_REASON
    )
    await open_scopes(connection, key, kept)
    if stage.plan.config.buffer.await_feedback:
        await hold_scopes(connection, key, kept)
    text = (
        f"explore step {tasks.explore_step}: {len(cut)} of {tasks.num_drawn} tasks were left "
        "behind, the others had ended (`explorer.over_rollout`)"
    )
    if kept:
        text += f"; of {len(kept)} of them the runs that had ended are trained"
    await log_notice(connection, stage.key, text)
    return len(cut)


async def request_version(connection: Connection, stage: Stage) -> None:
    """Asks the trainer to publish its current weights, before its next step at the latest."""
    await update_stage(connection, stage.key, wants_version=True)
    await notify(connection, batch_topic(stage.key))


def requested_version(stage: Stage) -> VersionRequested | None:
    """Returns VersionRequested if the trainer, done with all batches, must publish; else None."""
    is_known = stage.published is not None and stage.recorded_step <= stage.published
    if not stage.wants_version or is_known:
        return None
    return VersionRequested(f"explorers wait for weights version {stage.recorded_step}")


async def open_interval_evaluations(connection: Connection, stage: Stage) -> None:
    """Opens evaluations of the next step's weights after an interval's last explore step."""
    done = stage.explore_step - 1
    if stage.plan.has_dynamic_sync and done and done % stage.plan.eval_interval == 0:
        await open_evaluations(connection, stage, stage.step_version)


async def begin_exploring(connection: Connection, stage: Stage) -> None:
    """Records the initial weights as published, so that work can be leased."""
    await insert_version(connection, stage, INITIAL_VERSION)
    await update_stage(connection, stage.key, published=INITIAL_VERSION.version)
    if stage.is_evaluated(INITIAL_VERSION.version):
        await open_evaluations(connection, stage, INITIAL_VERSION.version)


async def log_progress(connection: Connection, stage: Stage) -> None:
    """Logs about ten notices of progress, because no train step reports any."""
    step, total = stage.explore_step, stage.total_explore_steps
    if not stage.plan.needs_training and 10 * step // total > 10 * (step - 1) // total:
        await log_notice(connection, stage.key, f"explore step {step} of {total} begins")


async def finish_if_explored(connection: Connection, stage: Stage) -> bool:
    """Ends a stage without a trainer when all of its tasks are done; returns whether they are."""
    unfinished = (
        stage.explore_step < stage.total_explore_steps
        or await first_unfinished(connection, stage.key)
        or await open_versions(connection, stage.key)
    )
    if unfinished:
        return False
    await update_stage(connection, stage.key, state=StageState.FINISHED)
    num_rows = await count_state(connection, stage.key, ExperienceState.READY)
    text = f"{stage.explore_step} explore steps are done, {num_rows} experiences are stored"
    if stage.plan.mode == "bench":
        text = "all evaluations are done"
    await log_notice(connection, stage.key, text)
    await notify(connection, *stage_topics(stage.key), RETENTION_TOPIC)
    return True


async def explored_rows(connection: Connection, stage: Stage) -> list[ReadyRow]:
    """Returns the rows of the next batch: the least used ones first."""
    return await least_used(connection, stage, stage.plan.train_batch_size)


async def load_queue(connection: Connection, stage: Stage) -> Taskset | None:
    """Returns the current queue of a stage, if it has one."""
    for taskset in stage.plan.tasksets:
        if taskset.storage_type == "queue":
            stored = (await stage_tasksets(connection, stage.key))[taskset.name]
            return await get_taskset(connection, stage.key.tenant, stored.taskset_id)
    return None


async def check_queue(
    connection: Connection, stage: Stage
) -> tuple[Stage, AdmissionRefusal | None]:
    """Returns a refusal if a queue has too few tasks for the next explore step.

    A closed queue ends the stage with the last step that it has tasks for.
    """
    queue = await load_queue(connection, stage)
    batch_size = stage.plan.config.buffer.batch_size
    if queue is None or stage.num_drawn + batch_size <= queue.num_rows:
        return stage, None
    num_left = queue.num_rows - stage.num_drawn
    if not queue.is_complete:
        return stage, AdmissionRefusal(
            f"explore step {stage.explore_step + 1} waits until the queue "
            f"{stage.plan.tasksets[0].name} has {batch_size} tasks, it has {num_left}",
            waits_for=WaitKind.TASKS,
        )
    return await _end_queue(connection, stage, num_left), AdmissionRefusal(
        "the queue is used up", is_final=True
    )


async def _end_queue(connection: Connection, stage: Stage, num_left: int) -> Stage:
    plan = stage.plan
    rows = stage.explore_step * plan.rows_per_explore_step
    made = train_steps_from(rows, plan.num_fresh_rows, plan.config.buffer.short_batch)
    made -= stage.num_unfilled
    total = max(stage.recorded_step, min(stage.total_train_steps, made))
    await update_stage(
        connection, stage.key, total_explore_steps=stage.explore_step, total_train_steps=total
    )
    text = f"queue {plan.tasksets[0].name} is closed and used up: {total} train steps in all"
    if num_left:
        text += (
            f"; its last {num_left} tasks make no explore step of {plan.config.buffer.batch_size}"
        )
    await log_notice(connection, stage.key, text)
    await notify(connection, *stage_topics(stage.key))
    return replace(stage, total_explore_steps=stage.explore_step, total_train_steps=total)


@dataclass(frozen=True, slots=True)
class DrawnTask:
    """A drawn task."""

    taskset: str
    row: int
    awaits_feedback: bool


async def draw_tasks(
    connection: Connection, stage: Stage, explore_step: int, count: int, *, version: int
) -> list[DrawnTask]:
    """Returns the next tasks for an explore step, to be rolled out with `version`.

    They depend on stored state alone. The caller holds the stage's lock and records the draw in the
    same transaction.
    """
    stored = await stage_tasksets(connection, stage.key)
    tasksets = stage.plan.tasksets
    queue = await load_queue(connection, stage)
    if queue is not None:
        name = tasksets[0].name
        stored[name] = replace(stored[name], num_rows=queue.num_rows)
    sizes = [stored[taskset.name].num_rows for taskset in tasksets]
    seeds = (stage.seed, MIX)
    drawn: dict[int, DrawnTask] = {}
    for share in interleave(sizes, seeds=seeds, first=stage.num_drawn, count=count):
        own = tasksets[share.taskset]
        learns = own.selector.difficulty is not None
        if learns:
            rows = await _draw_learned(connection, stage, explore_step, own, share, version)
        else:
            rows = await draw_rows(
                connection,
                stage.key,
                stored[own.name],
                own.selector,
                stage.seed,
                first=share.first,
                count=len(share.places),
            )
        drawn |= {
            place: DrawnTask(own.name, row, learns)
            for place, row in zip(share.places, rows, strict=True)
        }
    return [drawn[place] for place in range(count)]


async def draw_counter_after(connection: Connection, stage: Stage, count: int) -> int:
    """Returns the draw counter of a stage after `count` more draws.

    It stops at the end of a queue: if a refill reuses tasks of the queue, tasks that are added
    later are still drawn.
    """
    queue = await load_queue(connection, stage)
    last = stage.num_drawn + count
    return last if queue is None else min(last, queue.num_rows)


async def _draw_learned(
    connection: Connection,
    stage: Stage,
    explore_step: int,
    taskset: ResolvedTaskset,
    share: TasksetDraws,
    version: int,
) -> Sequence[int]:
    config = taskset.selector.difficulty
    assert config is not None
    beliefs = await current_beliefs(connection, stage, taskset.name, config, version=version)
    excluded = await tasks_of_step(connection, stage.key, taskset.name, explore_step)
    chance = seeded_generator((stage.seed, taskset.selector.seed), share.first)
    count = len(share.places)
    return await asyncio.to_thread(beliefs.sample_tasks, config, chance, count, excluded)


async def current_beliefs(
    connection: Connection, stage: Stage, taskset: str, config: DifficultyConfig, *, version: int
) -> PassRateBeliefs:
    """Returns the beliefs for draws that roll out `version`; the caller holds the stage's lock."""
    beliefs = await load_beliefs(connection, stage.key, taskset)
    last = await last_place_of_batch(connection, stage, version)
    if last is None:
        return beliefs
    groups = await groups_awaiting_feedback(connection, stage.key, taskset, last)
    if not groups:
        return beliefs
    steps = _pass_rates(groups)
    beliefs = await asyncio.to_thread(_learn, beliefs, steps, config)
    await update_beliefs(connection, stage.key, taskset, beliefs, len(steps))
    await mark_feedback_received(connection, stage.key, [group.assignment_id for group in groups])
    return beliefs


def _pass_rates(groups: Sequence[RolledOut]) -> list[dict[int, float]]:
    """Returns for each explore step the pass rate by task: its mean reward, clipped to 0..1."""
    rewards: dict[int, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for group in groups:
        if group.rewards:
            rewards[group.explore_step][group.task_index] += group.rewards
    return [
        {task: min(1.0, max(0.0, sum(own) / len(own))) for task, own in of_step.items()}
        for of_step in rewards.values()
    ]


def _learn(
    beliefs: PassRateBeliefs, steps: Sequence[dict[int, float]], config: DifficultyConfig
) -> PassRateBeliefs:
    for rates in steps:
        tasks_K = np.array(list(rates), dtype=np.int64)
        beliefs = beliefs.updated(tasks_K, np.array(list(rates.values())), config)
    return beliefs


async def draw_rows(
    connection: Connection,
    key: StageKey,
    taskset: StageTaskset,
    selector: ResolvedSelector,
    seed: int,
    *,
    first: int,
    count: int,
) -> Sequence[int]:
    """Returns the rows of draws `first` to `first + count - 1`, independent of earlier results."""
    numbers = draw_row_numbers(
        selector.selector_type,
        seeds=(seed, selector.seed),
        num_rows=taskset.num_rows,
        first=first,
        count=count,
    )
    if selector.selector_type == "offline_easy2hard":
        return await ranked_rows(connection, key, taskset.name, numbers)
    return numbers


async def prepare_selector(
    connection: Connection, key: StageKey, taskset: StageTaskset, selector: ResolvedSelector
) -> None:
    """Prepares a selector once per stage and taskset; learned state is never overwritten."""
    names = selector.feature_keys
    if not names or await has_selection(connection, key, taskset.name):
        return
    features = await load_features(connection, key.tenant, taskset.taskset_id, names)
    if selector.difficulty is not None:
        weak_N, strong_N = (feature_N.astype("<f4") for feature_N in features)
        del features
        beliefs = PassRateBeliefs.initial(weak_N, strong_N, selector.difficulty.rho)
        await insert_beliefs(connection, key, taskset.name, beliefs)
        return
    rows_N = await asyncio.to_thread(easy_to_hard, features)
    await insert_ranking(connection, key, taskset.name, rows_N)


def easy_to_hard(features: Sequence[FloatVector]) -> IntVector:
    """Returns rows by descending features, the first most significant; ties: later row first."""
    rising_N: IntVector = np.lexsort([np.arange(len(features[0])), *reversed(features)])
    return rising_N[::-1]
