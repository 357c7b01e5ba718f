"""Mean, maximum and minimum of a quantity, as metrics."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


def spread(name: str, values: Sequence[float] | npt.NDArray[np.float64]) -> dict[str, float]:
    """Returns the three metrics; none where there are no values."""
    ordered = sorted(float(value) for value in values)
    if not ordered:
        return {}
    mean = sum(ordered) / len(ordered)
    return {f"{name}/mean": mean, f"{name}/max": ordered[-1], f"{name}/min": ordered[0]}
