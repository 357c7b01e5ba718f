"""An advantage function that leaves time for something to happen meanwhile."""

import time

from trinity.algorithm.advantage.samples import Advantages, Samples

SECONDS = 0.5


def slow(samples: Samples) -> Advantages:
    """The reward itself, after a while."""
    time.sleep(SECONDS)
    return Advantages(samples.rewards.copy())
