"""An advantage function that leaves time for something to happen meanwhile."""

import time

from trinity.algorithm.advantage.samples import Advantages, Samples

SECONDS = 0.5


def slow(samples: Samples, *, seconds: float = SECONDS) -> Advantages:
    """The reward itself, after a while."""
    time.sleep(seconds)
    return Advantages(samples.rewards.copy())
