"""Builds the reader of a stage's training data, if it has any."""

from collections.abc import Callable
from pathlib import Path

from services.trainer.batch_rows import RowFormatter, RowReader
from trinity.config.plan import StagePlan
from trinity.config.plan_parts import ResolvedExperienceBuffer


def row_reader(
    plan: StagePlan, model_directory: Path, load_formatter: Callable[..., RowFormatter]
) -> RowReader:
    """Returns a reader; it formats training data by the model's tokenizer, rollouts are tokens.

    Raises: UserError when the tokenizer cannot be used.
    """
    data = _training_data(plan)
    formatter = None
    if data is not None:
        formatter = load_formatter(
            model_directory,
            name=data.name,
            schema=plan.algorithm.row_schema,
            chat_template=plan.chat_template,
            row_format=data.format,
            max_length=plan.max_model_len,
            enable_thinking=plan.config.model.enable_thinking,
        )
    return RowReader(formatter=formatter, among_rollouts=plan.has_rollouts)


def _training_data(plan: StagePlan) -> ResolvedExperienceBuffer | None:
    """Returns the buffer that holds training data; None where there are rollouts alone."""
    return plan.expert_buffer if plan.has_rollouts else plan.experience_buffer
