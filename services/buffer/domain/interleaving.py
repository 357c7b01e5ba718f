"""Deals draws to the tasksets of a stage that has several."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from services.buffer.domain.selector import permutation


@dataclass(frozen=True, slots=True)
class Share:
    """Draws of one taskset: the number of the first, and the place of each among all draws."""

    taskset: int
    first: int
    places: tuple[int, ...]


@lru_cache(maxsize=2)
def _order(seeds: tuple[int, ...], epoch: int, sizes: tuple[int, ...]) -> npt.NDArray[np.int32]:
    """Returns the taskset of each draw of an epoch, each once per row, [sum of sizes]."""
    tasksets = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
    return tasksets[permutation(seeds, epoch, len(tasksets))]


def interleave(
    sizes: Sequence[int], *, seeds: tuple[int, ...], first: int, count: int
) -> list[Share]:
    """Deals draws `first` to `first + count - 1` to tasksets of these sizes.

    In every epoch each taskset is drawn from as often as it has rows, in random order.
    """
    if len(sizes) == 1:
        return [Share(0, first, tuple(range(count)))]
    total, known = sum(sizes), tuple(sizes)
    epoch, start = divmod(first, total)
    before = np.bincount(_order(seeds, epoch, known)[:start], minlength=len(sizes))
    firsts = [epoch * size + int(seen) for size, seen in zip(sizes, before, strict=True)]
    dealt = [_of_draw(number, seeds, known, total) for number in range(first, first + count)]
    places = {
        taskset: tuple(i for i, own in enumerate(dealt) if own == taskset) for taskset in set(dealt)
    }
    return [Share(taskset, firsts[taskset], places[taskset]) for taskset in sorted(places)]


def _of_draw(number: int, seeds: tuple[int, ...], sizes: tuple[int, ...], total: int) -> int:
    epoch, place = divmod(number, total)
    return int(_order(seeds, epoch, sizes)[place])
