"""The outcome of one run of a trial, and the size of all runs."""

from dataclasses import dataclass, field

NUM_ROWS = 128
"""Of a train step."""
NUM_STEPS = 40
EVAL_INTERVAL = 10


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

    @property
    def end(self) -> float:
        """Held-out accuracy after the last step."""
        return self.accuracies[self.num_steps]
