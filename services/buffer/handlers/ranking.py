"""Prepares the stored state of feature-based selectors: a row ranking, or initial beliefs."""

import asyncio
from collections.abc import Sequence

import numpy as np
from sqlalchemy.ext.asyncio import AsyncConnection

from services.buffer.domain.difficulty import Beliefs, FloatVector, IntVector
from services.buffer.store.features import load_features
from services.buffer.store.selection import has_selection, insert_beliefs, insert_ranking
from services.buffer.store.stages import StageTaskset
from trinity.config.plan_parts import Selector
from trinity.types import StageKey


async def prepare_selector(
    connection: AsyncConnection, key: StageKey, taskset: StageTaskset, selector: Selector
) -> None:
    """Prepares a selector once per stage and taskset; learned state is never overwritten."""
    names = selector.feature_keys
    if not names or await has_selection(connection, key, taskset.name):
        return
    features = await load_features(connection, key.tenant, taskset.taskset_id, names)
    if selector.difficulty is not None:
        weak_N, strong_N = (feature_N.astype("<f4") for feature_N in features)
        del features
        beliefs = Beliefs.initial(weak_N, strong_N, selector.difficulty.rho)
        await insert_beliefs(connection, key, taskset.name, beliefs)
        return
    rows_N = await asyncio.to_thread(easy_to_hard, features)
    await insert_ranking(connection, key, taskset.name, rows_N)


def easy_to_hard(features: Sequence[FloatVector]) -> IntVector:
    """Returns rows by descending features, the first most significant; ties: later row first."""
    rising_N: IntVector = np.lexsort([np.arange(len(features[0])), *reversed(features)])
    return rising_N[::-1]
