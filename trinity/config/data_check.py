"""Whether tasksets and experience buffers hold rows with the columns that are asked of them."""

import json
from collections.abc import Mapping
from pathlib import Path

from trinity.algorithm.algorithm_type import RowSchema
from trinity.config.chat_template import check_template
from trinity.config.data_files import find_data_files
from trinity.config.data_format import FormatConfig
from trinity.config.data_rows import Row, count_rows, first_row
from trinity.config.hub_names import HubName, Rows, dataset_of, refuse_offline
from trinity.config.plan import StagePlan
from trinity.config.plan_parts import ResolvedExperienceBuffer, ResolvedTaskset
from trinity.config.too_few_rows import too_few_rows
from trinity.errors import UserError


def check_taskset(taskset: ResolvedTaskset) -> None:
    """Its files and their first row; what lies elsewhere is seen when it is read."""
    _check_fetchable(taskset)
    files = _files_here(taskset)
    if not files:
        return
    row = first_row(files)
    columns = taskset.format
    for key, column in {
        "prompt_key": columns.prompt_key,
        "response_key": columns.response_key,
        "system_prompt_key": columns.system_prompt_key,
        "workflow_key": columns.workflow_key,
        "reward_fn_key": columns.reward_fn_key,
    }.items():
        _check_column(row, key, column)
    for column in taskset.selector.feature_keys if taskset.task_pipeline is None else ():
        _check_feature(row, column)


def check_number_of_tasks(stage: StagePlan) -> None:
    """Whether the tasks to train on, those of all tasksets, are enough for one step.

    What a task pipeline leaves is known when it has run.
    """
    if not stage.tasksets or stage.total_train_steps is not None:
        return
    if any(one.task_pipeline is not None for one in stage.tasksets):
        return
    files = [_files_here(one) for one in stage.tasksets]
    if all(files):
        _check_size(sum(count_rows(some) for some in files), stage)


def _check_fetchable(rows: Rows) -> None:
    if name := dataset_of(rows):
        refuse_offline(HubName("dataset", name, f"`path: {name}`"))


def _files_here(rows: Rows) -> tuple[Path, ...]:
    """None where the buffer reads them from a database or the hub, or somebody sends them."""
    if rows.storage_type != "file" or rows.path is None or dataset_of(rows):
        return ()
    return find_data_files(rows.path, rows.split, rows.subset_name)


def _check_feature(row: Row, column: str) -> None:
    if column not in row:
        raise UserError(
            f"its rows have no column `{column}`, only {_columns(row)}: "
            "set `data_selector.feature_keys`"
        )
    try:
        float(str(row[column]))
    except ValueError as error:
        raise UserError(
            f"column `{column}` of its first row is no number: set `data_selector.feature_keys`"
        ) from error


def check_experience_buffer(buffer: ResolvedExperienceBuffer, stage: StagePlan) -> None:
    """Its files, their first row, and whether they are enough for one step.

    What lies in a database or on the hub is seen when it is read.
    """
    files = _files_to_train_on(buffer)
    if not files:
        return
    _check_row(first_row(files), buffer.format, stage.algorithm.row_schema)
    if stage.total_train_steps is None and buffer.task_pipeline is None:
        _check_size(count_rows(files), stage)


def check_auxiliary_buffer(buffer: ResolvedExperienceBuffer) -> None:
    """Its files and their first row: expert rows are as those of `sft`."""
    if files := _files_to_train_on(buffer):
        _check_row(first_row(files), buffer.format, "sft")


def _files_to_train_on(buffer: ResolvedExperienceBuffer) -> tuple[Path, ...]:
    if buffer.format.chat_template is not None:
        check_template(buffer.format.chat_template, "of `format`")
    _check_fetchable(buffer)
    return _files_here(buffer)


def _check_row(row: Row, columns: FormatConfig, schema: RowSchema) -> None:
    if schema == "cpt":
        _check_text(row, "prompt_key", columns.prompt_key)
    elif columns.prompt_type == "messages":
        _check_messages(row, columns, schema)
    else:
        answers = _answer_keys(columns, schema)
        for key, column in {"prompt_key": columns.prompt_key, **answers}.items():
            _check_text(row, key, column)
        _check_column(row, "system_prompt_key", columns.system_prompt_key)


def _answer_keys(columns: FormatConfig, schema: RowSchema) -> dict[str, str]:
    if schema == "dpo":
        return {"chosen_key": columns.chosen_key, "rejected_key": columns.rejected_key}
    return {"response_key": columns.response_key}


def _check_column(row: Row, key: str, column: str | None) -> None:
    if column and column not in row:
        raise UserError(
            f"its rows have no column `{column}`, only {_columns(row)}: set `format.{key}`"
        )


def _check_text(row: Row, key: str, column: str) -> None:
    _check_column(row, key, column)
    if isinstance(row[column], list | Mapping):
        raise UserError(
            f"column `{column}` of its first row is no text: set `format.{key}`, "
            "or `format.prompt_type: messages`"
        )


def _check_messages(row: Row, columns: FormatConfig, schema: RowSchema) -> None:
    answers = _answer_keys(columns, schema)
    key = columns.messages_key
    if key not in row:
        advice = f"its rows have no column `{key}`, only {_columns(row)}: set `format.messages_key`"
        if {columns.prompt_key, *answers.values()} <= row.keys():
            advice += ", or `format.prompt_type: plaintext`"
        raise UserError(advice)
    _check_list(row, key)
    if schema == "dpo":
        for name, column in answers.items():
            _check_column(row, name, column)
            _check_list(row, column)


def _check_list(row: Row, key: str) -> None:
    messages = row[key]
    if isinstance(messages, str):
        try:
            messages = json.loads(messages)
        except ValueError as error:
            raise UserError(f"column `{key}` of its first row is no JSON ({error})") from error
    if not _are_messages(messages):
        raise UserError(
            f"column `{key}` of its first row is no list of messages with `role` and `content`"
        )


def _are_messages(value: object) -> bool:
    return (
        isinstance(value, list)
        and len(value) > 0
        and all(isinstance(m, Mapping) and "role" in m and "content" in m for m in value)
    )


def _check_size(rows: int, stage: StagePlan) -> None:
    if reason := too_few_rows(stage, rows):
        raise UserError(f"its {reason}")


def _columns(row: Row) -> str:
    return ", ".join(f"`{column}`" for column in row) or "empty ones"
