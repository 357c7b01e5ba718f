"""Which row of a taskset the n-th draw takes: in order, or a new permutation each epoch."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

import numpy as np
import numpy.typing as npt

SelectorType = Literal["sequential", "shuffle"]
WORD = 2**64


@lru_cache(maxsize=2)
def permutation(seeds: tuple[int, ...], epoch: int, num_rows: int) -> npt.NDArray[np.int64]:
    """The order of one epoch; the same wherever and whenever it is asked for."""
    bits = np.random.PCG64(np.random.SeedSequence([*(seed % WORD for seed in seeds), epoch]))
    return np.random.Generator(bits).permutation(num_rows)


def draw(
    selector_type: SelectorType, *, seeds: tuple[int, ...], num_rows: int, first: int, count: int
) -> Sequence[int]:
    """Rows of draws `first` to `first + count - 1`, counted over all epochs from 0.

    `seeds` are the experiment's and the selector's own: each of them changes the order.
    """
    rows = []
    for number in range(first, first + count):
        epoch, place = divmod(number, num_rows)
        if selector_type == "shuffle":
            place = int(permutation(seeds, epoch, num_rows)[place])
        rows.append(place)
    return rows
