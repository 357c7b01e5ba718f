"""Group advantages by name: plain numpy, since the buffer computes them."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from trinity.plugins import Registry

FloatVector = npt.NDArray[np.float64]
AdvantageFn = Callable[..., FloatVector]
"""From the rewards of one task's samples [N] to their advantages [N]; its arguments by keyword."""

BUILT_IN = {
    "grpo": "trinity.algorithm.advantage.grpo.grpo",
    "none": "trinity.algorithm.advantage.none.none",
}
"""Functions of this package by name; whatever else is asked for is a user's."""

ADVANTAGES: Registry[AdvantageFn] = Registry("advantage function", BUILT_IN)
