"""Where a stage's training data comes from, if it has any."""

from pathlib import Path

from services.trainer.batch_rows import RowReader
from services.trainer.formatter import load_formatter
from trinity.config.data_format import FormatConfig
from trinity.config.plan import StagePlan


def row_reader(plan: StagePlan, model_directory: Path) -> RowReader:
    """Training data is formatted by the model's tokenizer; rollouts are tokens already.

    Raises: UserError when the tokenizer cannot be used.
    """
    row_format = training_data_format(plan)
    formatter = None
    if row_format is not None:
        formatter = load_formatter(
            model_directory,
            schema=plan.algorithm.row_schema,
            chat_template=plan.chat_template,
            row_format=row_format,
            max_length=plan.max_model_len,
            enable_thinking=plan.config.model.enable_thinking,
        )
    return RowReader(formatter=formatter, among_rollouts=plan.has_rollouts)


def training_data_format(plan: StagePlan) -> FormatConfig | None:
    """How its rows are to be read; None where there are rollouts alone."""
    if not plan.has_rollouts:
        return plan.experience_buffer.format
    buffer = plan.expert_buffer
    return None if buffer is None else buffer.format
