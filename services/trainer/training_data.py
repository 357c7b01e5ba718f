"""Where a stage's training data comes from, if it has any."""

from trinity.algorithm.sample_strategy import SAMPLE_STRATEGIES
from trinity.config import StagePlan
from trinity.config.data_format import FormatConfig


def training_data_format(plan: StagePlan) -> FormatConfig | None:
    """How its rows are to be read; None where there are rollouts alone."""
    if not plan.needs_rollout:
        return plan.experience_buffer.format
    algorithm = plan.algorithm
    strategy = SAMPLE_STRATEGIES.get(algorithm.sample_strategy)(**algorithm.sample_strategy_args)
    formats = {buffer.name: buffer.format for buffer in plan.auxiliary_buffers}
    return None if strategy.expert_buffer is None else formats[strategy.expert_buffer]
