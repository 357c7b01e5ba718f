"""Which row of a taskset the n-th draw takes: in order, or a new permutation each epoch."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

import numpy as np
import numpy.typing as npt

SelectorType = Literal["sequential", "shuffle"]


@lru_cache(maxsize=2)
def permutation(seed: int, epoch: int, num_rows: int) -> npt.NDArray[np.int64]:
    """The order of one epoch; the same wherever and whenever it is asked for."""
    bits = np.random.PCG64(np.random.SeedSequence([seed, epoch]))
    return np.random.Generator(bits).permutation(num_rows)


def draw(
    selector_type: SelectorType, *, seed: int, num_rows: int, first: int, count: int
) -> Sequence[int]:
    """Rows of draws `first` to `first + count - 1`, counted over all epochs from 0."""
    rows = []
    for number in range(first, first + count):
        epoch, place = divmod(number, num_rows)
        if selector_type == "shuffle":
            place = int(permutation(seed, epoch, num_rows)[place])
        rows.append(place)
    return rows
