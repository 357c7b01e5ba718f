"""Gives a selector the results of the tasks it drew.

The feedback is fixed by the batches, not by time: a draw that rolls out the weights of train step t
knows the groups up to the last one in batch t. After any crash, the next draw of the same explore
step knows the same groups and so takes the same tasks.
"""

import asyncio
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from sqlalchemy.ext.asyncio import AsyncConnection

from services.buffer.domain.difficulty import Beliefs
from services.buffer.domain.stage import Stage
from services.buffer.store.selection import load_beliefs, update_beliefs
from services.buffer.store.task_feedback import (
    RolledOut,
    last_place_of_batch,
    mark_heard,
    unheard_groups,
)
from trinity.config.difficulty import DifficultyConfig


async def current_beliefs(
    connection: AsyncConnection,
    stage: Stage,
    taskset: str,
    config: DifficultyConfig,
    *,
    version: int,
) -> Beliefs:
    """Returns the beliefs for draws that roll out `version`; the caller holds the stage's lock."""
    beliefs = await load_beliefs(connection, stage.key, taskset)
    last = await last_place_of_batch(connection, stage, version)
    if last is None:
        return beliefs
    groups = await unheard_groups(connection, stage.key, taskset, last)
    if not groups:
        return beliefs
    steps = _pass_rates(groups)
    beliefs = await asyncio.to_thread(_learn, beliefs, steps, config)
    await update_beliefs(connection, stage.key, taskset, beliefs, len(steps))
    await mark_heard(connection, stage.key, [group.assignment_id for group in groups])
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
    beliefs: Beliefs, steps: Sequence[dict[int, float]], config: DifficultyConfig
) -> Beliefs:
    for rates in steps:
        tasks_K = np.array(list(rates), dtype=np.int64)
        beliefs = beliefs.learned(tasks_K, np.array(list(rates.values())), config)
    return beliefs
