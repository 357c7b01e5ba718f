"""GRPO: how much better a sample did than the others of its task, in their standard deviations."""

import numpy as np
import numpy.typing as npt


def grpo(rewards: npt.NDArray[np.float64], *, epsilon: float = 1e-6) -> npt.NDArray[np.float64]:
    """Shape [N] to [N]; a sample alone has mean 0 and deviation 1, so it keeps its reward."""
    if len(rewards) == 1:
        return rewards / (1.0 + epsilon)
    mean, deviation = float(np.mean(rewards)), float(np.std(rewards, ddof=1))
    return (rewards - mean) / (deviation + epsilon)
