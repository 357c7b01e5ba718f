"""Checks that models which score are asked for scores, and that others are asked for texts."""

from collections.abc import Iterator
from pathlib import Path

from trinity.config.plan.auxiliary import (
    MODEL_REWARD,
    SCORING,
    asked_scorer,
    class_of,
    head_tensors,
)
from trinity.config.plan.parts import AuxiliaryModel, ResolvedTaskset
from trinity.config.plan.stage_plan import StagePlan
from trinity.errors import UserError

ASKS_FIRST_MODEL = frozenset(
    {
        "math_ruler_workflow",
        "async_math_ruler_workflow",
        "on_policy_distill_workflow",
        "on_policy_distill_math_workflow",
        "rubric_judge_workflow",
        "rubric_judge_openai_workflow",
    }
)
"""Workflows that ask the first auxiliary model for texts; of the others `agent` may be told to."""


def asks_first_model(taskset: ResolvedTaskset) -> bool:
    """Returns True if a taskset's built-in workflow asks the first auxiliary model for texts."""
    judges = taskset.workflow == "agent" and taskset.workflow_args.get("rubric_judge") is True
    return judges or taskset.workflow in ASKS_FIRST_MODEL


def scorer_errors(plan: StagePlan) -> Iterator[str]:
    """Yields a sentence for each taskset that asks the wrong kind of model."""
    first = next(iter(plan.auxiliary_models), None)
    for taskset in (*plan.tasksets, *plan.eval_tasksets):
        if asks_first_model(taskset) and first is not None and first.role == "score":
            yield (
                f"`{taskset.workflow}` asks the first of `explorer.auxiliary_models` for texts, "
                f"and `{first.name}` scores them: list a model that writes first"
            )
        if taskset.reward == MODEL_REWARD:
            try:
                asked_scorer(plan.auxiliary_models, taskset.reward_args.get("model"))
            except UserError as error:
                yield f"taskset `{taskset.name}`: {error}"


def check_role(model: AuxiliaryModel, directory: Path, at: str) -> None:
    """Raises UserError for a model whose files do not do what it is asked for."""
    words = model.engine.score_tokens
    if model.role == "generate":
        check_generates(directory, f"{at}.model_path", f"`{at}.role` is `generate`")
        for key, is_given in (("engine_type", not model.has_gpus), ("score_tokens", bool(words))):
            if is_given:
                raise UserError(
                    f"`{at}.{key}` is for a model that scores, and {directory} has no head of "
                    "scores: give another model, or leave the key out"
                )
        return
    has_head = SCORING.search(class_of(directory)) or head_tensors(directory)
    if has_head and words:
        raise UserError(
            f"`{at}.score_tokens` is for a model without a head of scores, and {directory} has "
            "one: leave it out"
        )
    if not has_head and not words:
        raise UserError(
            f"`{at}.role: score` asks {directory} for scores, and it has no head for them (no "
            "class such as `*ForSequenceClassification`, no tensors `v_head` or `score`): give "
            "another model, or in `score_tokens` the tokens by which it says its scores"
        )


def check_generates(directory: Path, key: str, use: str) -> None:
    """Raises UserError for a model that scores texts where one is asked to write."""
    kind = class_of(directory)
    if SCORING.search(kind):
        raise UserError(
            f"`{key}` names a {kind}, which scores texts and writes none, and {use}: give a model "
            "that writes; one that scores belongs in `explorer.auxiliary_models`, for "
            "`default_reward_fn_type: model_reward`"
        )
