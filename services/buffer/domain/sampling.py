"""Draws of rows and uniform hashes, which depend on seeds and numbers alone."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from trinity.config.schema.data import SelectorType

WORD = 2**64
IntVector = npt.NDArray[np.int64]


def seeded_generator(seeds: tuple[int, ...], number: int) -> np.random.Generator:
    """Returns a generator that is the same for the same seeds and number, on any machine."""
    words = [*(seed % WORD for seed in seeds), number]
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(words)))


@lru_cache(maxsize=2)
def permutation(seeds: tuple[int, ...], epoch: int, num_rows: int) -> IntVector:
    """Returns the shuffled row order of one epoch."""
    return seeded_generator(seeds, epoch).permutation(num_rows)


def draw_row_numbers(
    selector_type: SelectorType, *, seeds: tuple[int, ...], num_rows: int, first: int, count: int
) -> Sequence[int]:
    """Returns the rows of draws `first` to `first + count - 1`, counted over all epochs from 0.

    `seeds` are those of the experiment and of the selector: each changes the order. With `random`,
    no row is taken twice in one call before all rows were taken.
    """
    match selector_type:
        case "shuffle":
            places = (divmod(number, num_rows) for number in range(first, first + count))
            return [int(permutation(seeds, epoch, num_rows)[place]) for epoch, place in places]
        case "random":
            return list(_by_chance(seeded_generator(seeds, first), num_rows, count))
        case _:
            return [number % num_rows for number in range(first, first + count)]


def _by_chance(chance: np.random.Generator, num_rows: int, count: int) -> Iterator[int]:
    while count > 0:
        size = min(count, num_rows)
        yield from (int(row) for row in chance.choice(num_rows, size, replace=False))
        count -= size


@dataclass(frozen=True, slots=True)
class TasksetDraws:
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
) -> list[TasksetDraws]:
    """Deals draws `first` to `first + count - 1` to tasksets of these sizes.

    In every epoch each taskset is drawn from as often as it has rows, in random order.
    """
    if len(sizes) == 1:
        return [TasksetDraws(0, first, tuple(range(count)))]
    total, known = sum(sizes), tuple(sizes)
    epoch, start = divmod(first, total)
    before = np.bincount(_order(seeds, epoch, known)[:start], minlength=len(sizes))
    firsts = [epoch * size + int(seen) for size, seen in zip(sizes, before, strict=True)]
    dealt = [_of_draw(number, seeds, known, total) for number in range(first, first + count)]
    places = {
        taskset: tuple(i for i, own in enumerate(dealt) if own == taskset) for taskset in set(dealt)
    }
    return [TasksetDraws(taskset, firsts[taskset], places[taskset]) for taskset in sorted(places)]


def _of_draw(number: int, seeds: tuple[int, ...], sizes: tuple[int, ...], total: int) -> int:
    epoch, place = divmod(number, total)
    return int(_order(seeds, epoch, sizes)[place])


GOLDEN = np.uint64(0x9E3779B97F4A7C15)
FIRST, SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
BITS = 53


def hash_uniform(seed: int, *places_N: IntVector) -> npt.NDArray[np.float64]:
    """Returns a number in [0, 1) per sample, from the seed and its position, [N].

    SplitMix64 over the numbers, one after the other (https://doi.org/10.1145/2660193.2660195).
    """
    state_N = np.full(places_N[0].shape, seed % 2**64, dtype=np.uint64)
    for numbers_N in places_N:
        state_N = _mixed(state_N ^ _mixed(numbers_N.astype(np.uint64)))
    return (state_N >> np.uint64(64 - BITS)).astype(np.float64) * 2.0**-BITS


def _mixed(state_N: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    mixed_N = state_N + GOLDEN
    mixed_N = (mixed_N ^ (mixed_N >> np.uint64(30))) * FIRST
    mixed_N = (mixed_N ^ (mixed_N >> np.uint64(27))) * SECOND
    return mixed_N ^ (mixed_N >> np.uint64(31))
