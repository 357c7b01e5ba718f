"""Checks that tasksets and experience buffers hold rows with the required columns."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from trinity.algorithm.algorithm_type import RowSchema
from trinity.config.checks.hubs import check_hub
from trinity.config.checks.rows import (
    asks_question,
    check_task_rows,
    check_training_rows,
    compares_with_truth,
)
from trinity.config.data_files import find_data_files, unread_sentence
from trinity.config.data_rows import PlacedRow, Row, count_rows, first_placed_rows
from trinity.config.plan.model import HubReference, hub_dataset, require_online
from trinity.config.plan.parts import ResolvedExperienceBuffer, ResolvedRows, ResolvedTaskset
from trinity.config.plan.sizes import row_shortage_error
from trinity.config.plan.stage_plan import StagePlan
from trinity.config.schema.data import FormatConfig
from trinity.errors import UserError
from trinity.user_code.columns import column_names, column_value, has_column, optional_column
from trinity.user_code.hubs.place import HubPlace

_OF_EACH_ROW = ("prompt_key", "response_key")
_USUAL = FormatConfig()
CHECKED_ROWS = 32
"""Rows that are looked at before anything starts."""


def sample_rows(taskset: ResolvedTaskset) -> list[Row]:
    """Returns the first rows of a taskset; empty if they are not here or cannot be read."""
    return [row for _, row in placed_sample_rows(taskset)]


def placed_sample_rows(taskset: ResolvedTaskset) -> list[PlacedRow]:
    """Returns the same rows with their places in the files."""
    try:
        files = _files_here(taskset)
        if not files:
            return []
        return first_placed_rows(files, CHECKED_ROWS, taskset.format.image_key)
    except (UserError, OSError):
        return []


def unread_beside_shards(rows: ResolvedRows) -> str:
    """Returns a sentence about files of a split that are not read, or an empty text."""
    try:
        files = _files_here(rows)
        return unread_sentence(files, rows.path or "", rows.split, rows.subset_name)
    except (UserError, OSError):
        return ""


def check_taskset(taskset: ResolvedTaskset) -> None:
    """Checks the files and their first rows; rows elsewhere are checked when they are read."""
    if (place := HubPlace.parse(taskset.path)) is not None:
        check_hub(place)
    _check_fetchable(taskset)
    files = _files_here(taskset)
    if not files:
        return
    placed = first_placed_rows(files, CHECKED_ROWS, taskset.format.image_key)
    rows = [row for _, row in placed]
    if not _may_have_more_columns(taskset):
        _check_task_columns(placed, taskset)
    if taskset.task_pipeline is None:
        check_task_rows(taskset, rows)
        for column in taskset.selector.feature_keys:
            _check_feature(rows[0], column)


def check_truths(taskset: ResolvedTaskset) -> None:
    """Checks that the first rows have the truth that a reward compares with.

    Raises: UserError if all of them lack it.
    """
    rows = sample_rows(taskset)
    column = taskset.format.response_key
    if rows and not _may_have_more_columns(taskset) and not any(_has(row, column) for row in rows):
        _check_column(rows[0], "response_key", column)


def _check_task_columns(rows: Sequence[PlacedRow], taskset: ResolvedTaskset) -> None:
    """Checks the configured columns; single rows may lack a value with a default in the taskset."""
    columns = taskset.format
    asks_prompt = columns.prompt_key != _USUAL.prompt_key or asks_question(taskset)
    names_truth = columns.response_key != _USUAL.response_key or compares_with_truth(taskset)
    for key, column in {
        "prompt_key": columns.prompt_key if asks_prompt else None,
        "response_key": columns.response_key if names_truth else None,
        "system_prompt_key": columns.system_prompt_key,
        "workflow_key": columns.workflow_key,
        "reward_fn_key": columns.reward_fn_key,
    }.items():
        lacking = [place for place, row in rows if not _has(row, column)]
        if len(lacking) == len(rows):
            _check_column(rows[0][1], key, column)
        if key in _OF_EACH_ROW and 2 * len(lacking) > len(rows):
            raise UserError(
                f"{len(lacking)} of its first {len(rows)} rows have no column `{column}`, the "
                f"first is {lacking[0]}: set `format.{key}`, or correct the rows"
            )


def _has(row: Row, column: str | None) -> bool:
    return not column or has_column(row, column)


def _may_have_more_columns(rows: ResolvedRows) -> bool:
    return rows.task_pipeline is not None and rows.task_pipeline.may_add_columns


def check_number_of_tasks(stage: StagePlan) -> None:
    """Checks that the training tasksets together hold enough tasks for one step.

    The result of a task pipeline is known only after it has run.
    """
    if not stage.tasksets or stage.total_train_steps is not None:
        return
    if any(taskset.task_pipeline is not None for taskset in stage.tasksets):
        return
    files = [_files_here(taskset) for taskset in stage.tasksets]
    if all(files):
        _check_size(sum(count_rows(paths) for paths in files), stage)


def _check_fetchable(rows: ResolvedRows) -> None:
    if name := hub_dataset(rows):
        require_online(HubReference("dataset", name, f"`path: {name}`"))


def _files_here(rows: ResolvedRows) -> tuple[Path, ...]:
    """The local files; empty if rows come from a database, a hub or a client."""
    is_elsewhere = hub_dataset(rows) or HubPlace.parse(rows.path) is not None
    if rows.storage_type != "file" or rows.path is None or is_elsewhere:
        return ()
    return find_data_files(rows.path, rows.split, rows.subset_name)


def _check_feature(row: Row, column: str) -> None:
    if not has_column(row, column):
        raise UserError(
            f"its rows have no column `{column}`, only {_columns(row)}: "
            "set `data_selector.feature_keys`"
        )
    try:
        float(str(column_value(row, column)))
    except ValueError as error:
        raise UserError(
            f"column `{column}` of its first row is not a number: set `data_selector.feature_keys`"
        ) from error


def check_experience_buffer(buffer: ResolvedExperienceBuffer, stage: StagePlan) -> None:
    """Checks the files, their first row, and that they hold enough rows for one step.

    Rows in a database or on the hub are checked when they are read.
    """
    files = _files_to_train_on(buffer)
    if not files:
        return
    _check_rows(files, buffer, stage.algorithm.row_schema, stage)
    if stage.total_train_steps is None and buffer.task_pipeline is None:
        _check_size(count_rows(files), stage)


def check_auxiliary_buffer(buffer: ResolvedExperienceBuffer, stage: StagePlan) -> None:
    """Checks the files and their first row: expert rows have the columns of `sft`."""
    if files := _files_to_train_on(buffer):
        _check_rows(files, buffer, "sft", stage)


def _files_to_train_on(buffer: ResolvedExperienceBuffer) -> tuple[Path, ...]:
    if buffer.format.chat_template is not None:
        from trinity.data.chat_template import check_template

        check_template(buffer.format.chat_template, "of `format`")
    _check_fetchable(buffer)
    return _files_here(buffer)


def _check_rows(
    files: tuple[Path, ...],
    buffer: ResolvedExperienceBuffer,
    schema: RowSchema,
    stage: StagePlan,
) -> None:
    """Checks the columns of the first row, then the contents of the first rows."""
    rows = first_placed_rows(files, CHECKED_ROWS, buffer.format.image_key)
    if buffer.on_bad_row == "fail" and not _may_have_more_columns(buffer):
        _check_columns(rows[0][1], buffer.format, schema)
    if buffer.task_pipeline is None:
        check_training_rows(rows, buffer, schema, stage)


def _check_columns(row: Row, columns: FormatConfig, schema: RowSchema) -> None:
    if schema == "cpt":
        _check_text(row, "prompt_key", columns.prompt_key)
    elif schema == "dpo" and _are_conversations(row, columns):
        return
    elif schema == "kto" and columns.prompt_type == "plaintext":
        for key in ("prompt_key", "response_key", "label_key", "system_prompt_key"):
            _check_column(row, key, getattr(columns, key))
    elif columns.prompt_type == "messages":
        _check_messages(row, columns, schema)
    else:
        for key, column in _answer_keys(columns, schema).items():
            _check_text(row, key, column)
        _check_column(row, "prompt_key", columns.prompt_key)
        _check_column(row, "system_prompt_key", columns.system_prompt_key)


def _are_conversations(row: Row, columns: FormatConfig) -> bool:
    """Returns True if both answers are lists of messages; the row may then have no prompt."""
    return all(
        isinstance(optional_column(row, column), list)
        for column in (columns.chosen_key, columns.rejected_key)
    )


def _answer_keys(columns: FormatConfig, schema: RowSchema) -> dict[str, str]:
    if schema == "dpo":
        return {"chosen_key": columns.chosen_key, "rejected_key": columns.rejected_key}
    return {"response_key": columns.response_key}


def _check_column(row: Row, key: str, column: str | None) -> None:
    if column and not has_column(row, column):
        raise UserError(
            f"its rows have no column `{column}`, only {_columns(row)}: set `format.{key}`"
        )


def _check_text(row: Row, key: str, column: str) -> None:
    _check_column(row, key, column)
    if isinstance(column_value(row, column), list | Mapping):
        raise UserError(
            f"column `{column}` of its first row is not text: set `format.{key}`, "
            "or `format.prompt_type: messages`"
        )


def _check_messages(row: Row, columns: FormatConfig, schema: RowSchema) -> None:
    answers = _answer_keys(columns, schema)
    key = columns.messages_key
    if not has_column(row, key):
        advice = f"its rows have no column `{key}`, only {_columns(row)}: set `format.messages_key`"
        if all(has_column(row, name) for name in (columns.prompt_key, *answers.values())):
            advice += ", or `format.prompt_type: plaintext`"
        raise UserError(advice)
    if schema == "dpo":
        for name, column in answers.items():
            _check_column(row, name, column)


def _check_size(rows: int, stage: StagePlan) -> None:
    if reason := row_shortage_error(stage, rows):
        raise UserError(f"its {reason}")


def _columns(row: Row) -> str:
    return ", ".join(f"`{column}`" for column in column_names(row)) or "empty ones"
