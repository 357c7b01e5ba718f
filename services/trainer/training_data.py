"""Where a stage's training data comes from, if it has any."""

from trinity.config import StagePlan
from trinity.config.data_format import FormatConfig


def training_data_format(plan: StagePlan) -> FormatConfig | None:
    """How its rows are to be read; None where there are rollouts alone."""
    return None if plan.needs_rollout else plan.experience_buffer.format
