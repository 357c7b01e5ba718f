"""Batches by priority from a replay buffer."""

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
    """A choice among the samples up to a place."""

    stage: Stage
    choice: Choice
    before: Place | None
    is_enough: bool
    """True if all due rows are there."""


def bounds(stage: Stage, step: int) -> Iterator[Place | None]:
    """Yields places up to which a batch may take samples, to be tried until there are enough.

    In a stage with fixed order these are the due explore steps, and later ones only if the due ones
    have too few rows: the batch must not depend on what else has arrived.
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
    """Chooses among the candidates for the batch of `step`; changes nothing but stale rows.

    Raises: PriorityFailed.
    """
    settings = _replay(stage)
    stage = await leave_out_stale(connection, stage, step, before)
    oldest = stage.plan.oldest_version(step)
    unused = await load_unused(connection, stage, before)
    used = await load_used(connection, stage)
    stale = [row for row in used if row.version is not None and row.version < oldest]
    stale_ids = {row.experience_id for row in stale}
    waiting = [*unused, *(row for row in used if row.experience_id not in stale_ids)]
    computed = await priorities.compute(
        settings.priority_fn, settings.priority_fn_args, candidates_of(waiting, stage.seed)
    )
    size = stage.plan.num_rollout_rows
    choice = choose(waiting, computed, settings, step=step, size=size)
    choice = replace(choice, retired=[*choice.retired, *stale])
    num_there = len(choice.taken if stage.is_ordered else choice.unused)
    return Look(stage, choice, before, is_enough=num_there >= max(planned_rows(stage, step), 1))


async def settle_choice(
    connection: AsyncConnection, stage: Stage, choice: Choice, step: int
) -> dict[str, float]:
    """Applies a choice to the database; returns metrics for the batch."""
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
    # Rows left out free credit for the next explore step.
    await notify(connection, work_topic(stage.key))


def _why_dropped(replay: ResolvedReplay, step: int) -> str:
    return (
        f"the last in order when the batch of train step {step} was composed, and the replay "
        f"buffer has room for {replay.capacity} (`capacity`, `when_full: drop`)"
    )


def _figures(choice: Choice) -> dict[str, float]:
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


def _ids(rows: Sequence[Waiting]) -> list[str]:
    return [row.experience_id for row in rows]
