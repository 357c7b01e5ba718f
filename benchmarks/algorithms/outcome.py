"""The outcome of one run of a trial, and the size of all runs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

NUM_ROWS = 128
"""Rows of a train step on the example's addition."""
NUM_STEPS = 40
EVAL_INTERVAL = 10
CURVE_INTERVAL = 8
"""Where the area under the held-out curve is the figure."""


@dataclass(slots=True, kw_only=True)
class TrialRun:
    """The outcome of one run; written as a line of JSON."""

    trial: str
    lag: int
    seed: int
    num_steps: int
    start: float
    """Held-out accuracy before."""
    accuracies: dict[int, float] = field(default_factory=dict)
    """Held-out, by train step."""
    losses: dict[int, float] = field(default_factory=dict)
    """On held-out rows of data, by train step, from 0 on; empty for rollouts."""
    rewards: list[float] = field(default_factory=list)
    """Share of right answers among each step's rollouts."""
    figures: dict[str, float] = field(default_factory=dict)
    """Of the last train step."""
    seconds: float = 0.0
    """Of this process's processor."""
    training_seconds: dict[int, float] = field(default_factory=dict)
    """Of them those of rollouts and training until then, by train step of the curve."""

    @property
    def end(self) -> float:
        """Held-out accuracy after the last step."""
        return self.accuracies[self.num_steps]

    @property
    def area(self) -> float:
        """Mean height of the held-out curve over the steps, its start at step 0 with it."""
        return area_under(self.start, self.accuracies)

    @property
    def curve(self) -> tuple[object, ...]:
        """The numbers that two runs share if they computed the same bits."""
        return tuple(sorted(self.accuracies.items())), tuple(self.rewards)


def area_under(start: float, accuracies: Mapping[int, float]) -> float:
    """Returns the mean height over the steps of a curve that begins at step 0."""
    points = [(0, start), *sorted(accuracies.items())]
    total = sum(
        (later - step) * (height + next_height) / 2
        for (step, height), (later, next_height) in pairwise(points)
    )
    return total / points[-1][0]
