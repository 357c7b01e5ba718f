"""Selection of rows by draw number and seeds alone."""

from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from trinity.config.data_format import SelectorType

WORD = 2**64
IntVector = npt.NDArray[np.int64]


def generator(seeds: tuple[int, ...], number: int) -> np.random.Generator:
    """Returns a generator that is the same for the same seeds and number, on any machine."""
    words = [*(seed % WORD for seed in seeds), number]
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(words)))


@lru_cache(maxsize=2)
def permutation(seeds: tuple[int, ...], epoch: int, num_rows: int) -> IntVector:
    """Returns the shuffled row order of one epoch."""
    return generator(seeds, epoch).permutation(num_rows)


def draw(
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
            return list(_by_chance(generator(seeds, first), num_rows, count))
        case _:
            return [number % num_rows for number in range(first, first + count)]


def _by_chance(chance: np.random.Generator, num_rows: int, count: int) -> Iterator[int]:
    while count > 0:
        size = min(count, num_rows)
        yield from (int(row) for row in chance.choice(num_rows, size, replace=False))
        count -= size
