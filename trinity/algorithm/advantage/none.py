"""No comparison: every sample weighs the same."""

import numpy as np
import numpy.typing as npt


def none(rewards: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Shape [N] to [N], all 0."""
    return np.zeros_like(rewards)
