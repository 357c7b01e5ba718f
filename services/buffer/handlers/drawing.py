"""Draws tasks: chooses the next tasksets, and rows of each."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlalchemy.ext.asyncio import AsyncConnection

from services.buffer.domain.interleaving import Share, interleave
from services.buffer.domain.selector import draw, generator
from services.buffer.domain.stage import Stage
from services.buffer.handlers.queueing import queue_of
from services.buffer.handlers.task_feedback import current_beliefs
from services.buffer.store.selection import ranked_rows
from services.buffer.store.stages import StageTaskset, stage_tasksets
from services.buffer.store.task_feedback import tasks_of_step
from trinity.config.plan_parts import ResolvedTaskset, Selector
from trinity.types import StageKey

MIX = 1
"""Seed that separates the mixing of tasksets from the random draws of their selectors."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """A drawn task."""

    taskset: str
    row: int
    awaits_feedback: bool


async def draw_tasks(
    connection: AsyncConnection, stage: Stage, count: int, *, version: int
) -> list[Drawn]:
    """Returns the next tasks of a stage, to be rolled out with `version`.

    They depend on stored state alone. The caller holds the stage's lock and records the draw in the
    same transaction.
    """
    stored = await stage_tasksets(connection, stage.key)
    tasksets = stage.plan.tasksets
    queue = await queue_of(connection, stage)
    if queue is not None:
        name = tasksets[0].name
        stored[name] = replace(stored[name], num_rows=queue.num_rows)
    sizes = [stored[taskset.name].num_rows for taskset in tasksets]
    seeds = (stage.seed, MIX)
    drawn: dict[int, Drawn] = {}
    for share in interleave(sizes, seeds=seeds, first=stage.num_drawn, count=count):
        own = tasksets[share.taskset]
        learns = own.selector.difficulty is not None
        if learns:
            rows = await _draw_learned(connection, stage, own, share, version)
        else:
            rows = await _draw_share(connection, stage, own.selector, stored[own.name], share)
        drawn |= {
            place: Drawn(own.name, row, learns)
            for place, row in zip(share.places, rows, strict=True)
        }
    return [drawn[place] for place in range(count)]


async def cursor_after(connection: AsyncConnection, stage: Stage, count: int) -> int:
    """Returns the draw counter of a stage after `count` more draws.

    It stops at the end of a queue: if a refill reuses tasks of the queue, tasks that are added
    later are still drawn.
    """
    queue = await queue_of(connection, stage)
    last = stage.num_drawn + count
    return last if queue is None else min(last, queue.num_rows)


async def _draw_share(
    connection: AsyncConnection,
    stage: Stage,
    selector: Selector,
    taskset: StageTaskset,
    share: Share,
) -> Sequence[int]:
    first, count = share.first, len(share.places)
    return await draw_rows(
        connection, stage.key, taskset, selector, stage.seed, first=first, count=count
    )


async def _draw_learned(
    connection: AsyncConnection,
    stage: Stage,
    taskset: ResolvedTaskset,
    share: Share,
    version: int,
) -> Sequence[int]:
    config = taskset.selector.difficulty
    assert config is not None
    beliefs = await current_beliefs(connection, stage, taskset.name, config, version=version)
    excluded = await tasks_of_step(connection, stage.key, taskset.name, stage.explore_step)
    chance = generator((stage.seed, taskset.selector.seed), share.first)
    count = len(share.places)
    return await asyncio.to_thread(beliefs.choose, config, chance, count, excluded)


async def draw_rows(
    connection: AsyncConnection,
    key: StageKey,
    taskset: StageTaskset,
    selector: Selector,
    seed: int,
    *,
    first: int,
    count: int,
) -> Sequence[int]:
    """Returns the rows of draws `first` to `first + count - 1`, independent of earlier results."""
    numbers = draw(
        selector.selector_type,
        seeds=(seed, selector.seed),
        num_rows=taskset.num_rows,
        first=first,
        count=count,
    )
    if selector.selector_type == "offline_easy2hard":
        return await ranked_rows(connection, key, taskset.name, numbers)
    return numbers
