"""Values that the trainer's parts share."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RowStatistics:
    """Means over a row's trained tokens."""

    mean_ratio: float
    """Probability by the policy that the step started from, divided by the rollout policy's."""
    advantage: float
