"""Checks the first rows of data, as far as possible without a model."""

from collections.abc import Callable, Iterator, Sequence

from trinity.algorithm.algorithm_type import RowSchema
from trinity.config.data_rows import PlacedRow, Row
from trinity.config.plan.parts import ResolvedExperienceBuffer, ResolvedTaskset
from trinity.config.plan.stage_plan import StagePlan
from trinity.config.schema.data import FormatConfig
from trinity.config.training_rows import check_training_row
from trinity.data.conversations import (
    MEDIA_ADVICE,
    BadConversation,
    holds_messages,
    last_user_text,
    media_column,
    parse_messages,
    place_images,
)
from trinity.data.rows import row_name
from trinity.errors import UserError
from trinity.plugins import (
    BASELINE_WORKFLOWS,
    DISTILLATION_WORKFLOWS,
    SELF_DISTILLATION_WORKFLOWS,
)
from trinity.user_code.columns import column_value, has_column, optional_column, row_images

QUESTION_WORKFLOWS = frozenset(
    {
        *BASELINE_WORKFLOWS,
        *DISTILLATION_WORKFLOWS,
        *SELF_DISTILLATION_WORKFLOWS,
        "simple_mm_workflow",
        "simple_workflow",
        "math_workflow",
        "math_boxed_workflow",
        "math_rm_workflow",
        "rubric_judge_workflow",
        "verl_agent_workflow",
    }
)
"""They ask the text of the prompt column; others may read any column."""
TEXT_REWARDS = frozenset(
    {
        "accuracy_reward",
        "exact_match_reward",
        "geo3k_reward",
        "gsm8k_reward",
        "math_boxed_reward",
        "math_dapo_reward",
        "math_reward",
    }
)
"""They compare with a text or a number."""
TRUTH_REWARDS = TEXT_REWARDS | {"countdown_reward", "search_answer_reward"}
"""They compare with the truth of a row."""
MATH_WORKFLOWS = frozenset({"math_workflow", "math_boxed_workflow", "simple_mm_workflow"})
"""They already define such a reward."""


def asks_question(taskset: ResolvedTaskset) -> bool:
    """Returns true if the taskset's workflow is known to take the prompt column as the question."""
    return taskset.workflow.removeprefix("async_") in QUESTION_WORKFLOWS


def compares_with_truth(taskset: ResolvedTaskset) -> bool:
    """Returns true if a built-in reward of the taskset, or of its workflow, asks for the truth."""
    if taskset.reward is not None:
        return taskset.reward in TRUTH_REWARDS
    return taskset.workflow.removeprefix("async_") in MATH_WORKFLOWS


def check_task_rows(taskset: ResolvedTaskset, rows: Sequence[Row]) -> None:
    """Checks that at least half of the rows have a valid question and truth.

    Single invalid rows are left to the run, which gives them up and continues.

    Raises: UserError with the error of the first row, if most have one.
    """
    errors = [error for error in map(_error_of(taskset), rows) if error]
    if 2 * len(errors) > len(rows):
        raise UserError(errors[0])


def single_bad_rows(taskset: ResolvedTaskset, rows: Sequence[PlacedRow]) -> str:
    """Returns a sentence about invalid rows if at most half of the rows are invalid."""
    error_of = _error_of(taskset)
    found = [(place, error) for place, row in rows if (error := error_of(row))]
    if not found or 2 * len(found) > len(rows):
        return ""
    (place, error), *_ = found
    return (
        f"{len(found)} of its first {len(rows)} rows cannot be asked or scored, and the run gives "
        f"them up; the first is {place}: {error}"
    )


def check_training_rows(
    rows: Sequence[PlacedRow],
    buffer: ResolvedExperienceBuffer,
    schema: RowSchema,
    stage: StagePlan,
) -> None:
    """Checks that the rows can be trained on; with `on_bad_row: skip`, that one of them can.

    The chat template is tried on them where the model is here.

    Raises: UserError with the error of the first row that has one.
    """
    errors: list[UserError] = []
    from trinity.config.checks.row_templates import load_row_template  # Jinja, for few rows

    template = None if schema == "cpt" else load_row_template(stage, buffer)
    for index, (place, row) in enumerate(rows):
        try:
            read = check_training_row(dict(row), buffer.format, schema, row_name(index))
            if template is not None and read is not None:
                template.check(read, index)
        except UserError as error:
            errors.append(UserError(str(error).replace(row_name(index), place, 1)))
    if errors and (buffer.on_bad_row == "fail" or len(errors) == len(rows)):
        raise errors[0]


def _error_of(taskset: ResolvedTaskset) -> Callable[[Row], str]:
    def error(row: Row) -> str:
        return next(_errors(taskset, row), "")

    return error


def _errors(taskset: ResolvedTaskset, row: Row) -> Iterator[str]:
    form = taskset.format
    own_workflow = optional_column(row, form.workflow_key) if form.workflow_key else None
    workflow = str(own_workflow or taskset.workflow).removeprefix("async_")
    if workflow in QUESTION_WORKFLOWS:
        yield from _prompt_errors(row, form)
    own = taskset.reward is None and workflow in MATH_WORKFLOWS
    if (own or taskset.reward in TEXT_REWARDS) and not form.reward_fn_key:
        yield from _truth_errors(row, form)


def _prompt_errors(row: Row, form: FormatConfig) -> Iterator[str]:
    key = form.prompt_key
    if not has_column(row, key):
        yield f"there is no column `{key}`: set `format.prompt_key`"
        return
    value = column_value(row, key)
    if value is None or isinstance(value, dict):
        kind = "null" if value is None else "an object"
        yield f"column `{key}` is {kind}, neither a text nor messages: set `format.prompt_key`"
        return
    images = row_images(row, form.image_key)
    try:
        if holds_messages(value):
            text = last_user_text(parse_messages(value, images))
        else:
            text = str(value)
            if images is not None:
                place_images([{"role": "user", "content": text}], images)
    except BadConversation as error:
        yield f"column `{key}`: {error}: correct the rows, or set `format.prompt_key`"
        return
    if images is None and (column := media_column(text, row)):
        yield f"its prompts refer to column `{column}`: {MEDIA_ADVICE[column]}"


def _truth_errors(row: Row, form: FormatConfig) -> Iterator[str]:
    key = form.response_key
    if not key:
        return
    if not has_column(row, key):
        yield f"there is no column `{key}`: set `format.response_key`"
        return
    value = column_value(row, key)
    if isinstance(value, list | dict):
        inner = f"`{key}.{next(iter(value))}`" if isinstance(value, dict) and value else "another"
        yield f"column `{key}` holds no truth but a structure: set `format.response_key` to {inner}"
    elif value is None:
        yield f"column `{key}` is null: set `format.response_key`"
