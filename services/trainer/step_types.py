"""What a step gave."""

from dataclasses import dataclass

from services.trainer.outcome import RowStatistics

Metrics = dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutcome:
    """The result of a step: metrics of the whole batch, and statistics of its rows."""

    metrics: Metrics
    rows: dict[int, RowStatistics]
    """Keyed by position in the batch."""
