"""Batches by priority: which samples come first, and which are trained once more."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from sqlalchemy.ext.asyncio import AsyncConnection

from services.buffer.domain.events import Notice
from services.buffer.domain.replay import Choice, Waiting, candidates_of, choose
from services.buffer.domain.stage import Stage, due_explore_step, planned_rows
from services.buffer.domain.states import ExperienceState
from services.buffer.handlers.sampling import leave_out_stale
from services.buffer.priorities import Priorities
from services.buffer.store.batches import any_metric_above_zero
from services.buffer.store.database import notify, work_topic
from services.buffer.store.experiences import set_states
from services.buffer.store.progress import log_event
from services.buffer.store.ready_rows import Place
from services.buffer.store.replay_pool import enter_pool, leave_pool, load_unused, load_used
from trinity.config.plan_parts import ResolvedReplay

NUM_REPLAYED = "replay/num_replayed_rows"
NUM_WAITING = "replay/num_waiting_rows"
NUM_RETIRED = "replay/num_retired_rows"
NUM_DROPPED = "replay/num_dropped_rows"
USES = "replay/use_count"


@dataclass(frozen=True, slots=True)
class Look:
    """A choice among what there is up to a place."""

    stage: Stage
    choice: Choice
    before: Place | None
    is_enough: bool
    """Whether the rows that are due are there."""


def bounds(stage: Stage, step: int) -> Iterator[Place | None]:
    """Places up to which a batch may look for samples, one after the other until there are enough.

    Where the order of rows is fixed, these are the explore steps that are due, and further ones
    only if they came out short: what else has arrived by now must not matter.
    """
    if not stage.is_ordered:
        yield None
        return
    for explore_step in range(due_explore_step(stage, step), stage.explore_step + 1):
        yield explore_step + 1, 0


async def look(
    connection: AsyncConnection,
    stage: Stage,
    step: int,
    before: Place | None,
    priorities: Priorities,
) -> Look:
    """Choose among what may come into the batch of `step`; nothing but stale rows changes.

    Raises: PriorityFailed.
    """
    settings = _replay(stage)
    stage = await leave_out_stale(connection, stage, step, before)
    oldest = stage.plan.oldest_version(step)
    unused = await load_unused(connection, stage, before)
    used = await load_used(connection, stage)
    stale = [one for one in used if one.version is not None and one.version < oldest]
    gone = {one.experience_id for one in stale}
    waiting = [*unused, *(one for one in used if one.experience_id not in gone)]
    computed = await priorities.compute(
        settings.priority_fn, settings.priority_fn_args, candidates_of(waiting, stage.seed)
    )
    size = stage.plan.num_rollout_rows
    choice = choose(waiting, computed, settings, step=step, size=size)
    choice = replace(choice, retired=[*choice.retired, *stale])
    there = len(choice.taken if stage.is_ordered else choice.unused)
    return Look(stage, choice, before, is_enough=there >= max(planned_rows(stage, step), 1))


async def settle_choice(
    connection: AsyncConnection, stage: Stage, choice: Choice, step: int
) -> dict[str, float]:
    """Let everything go where it was chosen to; answers the batch's figures."""
    replay, key = _replay(stage), stage.key
    fresh = _ids(choice.unused)
    await set_states(connection, key, fresh, ExperienceState.BATCHED)
    if replay.cooldown_steps is not None:
        await enter_pool(connection, key, fresh)
    await leave_pool(connection, key, _ids(choice.retired))
    await _leave_out(connection, stage, choice.dropped, _why_dropped(replay, step))
    unwanted = f"`priority_fn: {replay.priority_fn}` gave it no priority"
    await _leave_out(connection, stage, choice.refused, unwanted)
    return _figures(choice)


async def _leave_out(
    connection: AsyncConnection, stage: Stage, rows: Sequence[Waiting], reason: str
) -> None:
    if not rows:
        return
    await set_states(connection, stage.key, _ids(rows), ExperienceState.FILTERED, reason)
    if not await any_metric_above_zero(connection, stage, NUM_DROPPED):
        text = f"{len(rows)} rows are left out: {reason}; all of them are counted in {NUM_DROPPED}"
        await log_event(connection, stage.key, Notice(text=text))
    # They leave room for the next explore step.
    await notify(connection, work_topic(stage.key))


def _why_dropped(replay: ResolvedReplay, step: int) -> str:
    return (
        f"the last in order when the batch of train step {step} was composed, and the replay "
        f"buffer has room for {replay.capacity} (`capacity`, `when_full: drop`)"
    )


def _figures(choice: Choice) -> dict[str, float]:
    uses = [one.num_uses for one in choice.taken]
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


def _ids(rows: Sequence[Waiting]) -> list[str]:
    return [one.experience_id for one in rows]
