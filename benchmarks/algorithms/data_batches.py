"""Batches of given rows, in an order of their own each pass."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count

from benchmarks.algorithms.job import Unit
from services.trainer.types import TrainBatch


def batches(units: Sequence[Unit], num_units: int, seed: int) -> Iterator[TrainBatch]:
    """Without end, steps from 1 on; what does not fill a batch is left out of its pass."""
    order, steps = random.Random(seed), count(1)
    while True:
        shuffled = order.sample(units, len(units))
        for start in range(0, len(units) - num_units + 1, num_units):
            yield batch_of(shuffled[start : start + num_units], next(steps))


def batch_of(units: Sequence[Unit], step: int) -> TrainBatch:
    """The two rows of a pair have one position."""
    rows = [replace(row, position=place) for place, unit in enumerate(units) for row in unit]
    return TrainBatch(step=step, rows=rows, metrics={}, replayed=False)
