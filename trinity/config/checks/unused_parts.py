"""Advice on costly parts with results that are not used, as far as built-in parts show.

Explorers watch users' workflows while they run (`services/explorer/rollout/part_use.py`).
"""

from collections.abc import Iterator

from trinity.algorithm.advantage import ADVANTAGES
from trinity.algorithm.token_advantage import TOKEN_ADVANTAGES, needs_of
from trinity.config.checks.scorers import asks_first_model
from trinity.config.plan.auxiliary import MODEL_REWARD, REWARDED_BY_ITSELF, asked_scorer
from trinity.config.plan.parts import ResolvedTaskset
from trinity.config.plan.stage_plan import StagePlan
from trinity.operators import OPERATORS
from trinity.plugins import REWARDS, WORKFLOWS
from trinity.runtime.json_values import JsonValue

RECORDS = {
    "on_policy_distill_workflow": ("teacher", "a teacher's log-probabilities"),
    "on_policy_distill_math_workflow": ("teacher", "a teacher's log-probabilities"),
    "self_distill_workflow": ("teacher", "the hinted policy's log-probabilities"),
    "greedy_baseline_workflow": ("baselines", "the reward of a greedy answer"),
}
"""What workflows compute for advantages that need it, at the cost of further passes."""
CHANGES_REWARDS = frozenset({"overlong_penalty", "reward_shaping_mapper"})
READS_REWARDS = frozenset(
    {
        "dapo_dynamic_sampling",
        "group_mean_filter",
        "pass_rate_calculator",
        "reward_filter",
        "reward_std_filter",
        "data_juicer",
    }
)
WITHOUT_REWARDS = {
    "gdpo": "reads the parts of rewards as they came",
    "jensen_shannon": "reads a teacher's log-probabilities alone",
    "jsd": "reads a teacher's log-probabilities alone",
    "on_policy_distill": "reads a teacher's log-probabilities alone",
}
"""Advantages that do not read rewards."""


def _is_known(taskset: ResolvedTaskset) -> bool:
    """Returns True if all runs of a taskset have a built-in workflow and reward."""
    form, reward = taskset.format, taskset.reward
    return (
        taskset.workflow in WORKFLOWS.builtins
        and not form.workflow_key
        and not form.reward_fn_key
        and (reward is None or reward in REWARDS.builtins)
    )


def _tasksets(stage: StagePlan) -> tuple[ResolvedTaskset, ...]:
    return (*stage.tasksets, *stage.eval_tasksets) if stage.needs_rollout else ()


def reward_is_not_called(stage: StagePlan) -> Iterator[str]:
    """Some workflows score by themselves, whatever their taskset says."""
    for taskset in _tasksets(stage):
        if taskset.reward is not None and taskset.workflow in REWARDED_BY_ITSELF:
            yield (
                f"`default_reward_fn_type: {taskset.reward}` of taskset `{taskset.name}` is not "
                f"called: `{taskset.workflow}` has a reward of its own"
            )


def auxiliary_model_is_not_asked(stage: StagePlan) -> Iterator[str]:
    """An auxiliary model keeps its memory and GPUs, asked or not."""
    tasksets = _tasksets(stage)
    if not tasksets or not all(map(_is_known, tasksets)):
        return
    asks = any(map(asks_first_model, tasksets))
    names = "`, `".join(dict.fromkeys(taskset.workflow for taskset in tasksets))
    rewarding = {
        asked_scorer(stage.auxiliary_models, taskset.reward_args.get("model"))
        for taskset in tasksets
        if taskset.reward == MODEL_REWARD
    }
    for place, model in enumerate(stage.auxiliary_models):
        if place in rewarding or (asks and place == 0):
            continue
        by = f"`{names}` asks the first one alone" if asks else f"`{names}` asks none"
        rewards = "no other reward" if rewarding else "no reward"
        yield (
            f"`explorer.auxiliary_models[{place}]` ({model.name}) is started and never asked: "
            f"{by}, and {rewards} does; leave it out, or give a workflow that calls it"
        )


def _are_built_in(stage: StagePlan) -> bool:
    """Returns True if the advantage and all operators are built in, so their inputs are known."""
    operators = {operator.name for operator in stage.operators}
    advantages = {*ADVANTAGES.builtins, *TOKEN_ADVANTAGES.builtins}
    return stage.algorithm.advantage_fn in advantages and operators <= OPERATORS.builtins.keys()


def record_is_not_read(stage: StagePlan) -> Iterator[str]:
    """Some workflows pay further passes for what few advantages read."""
    advantage = stage.algorithm.advantage_fn
    if not stage.needs_training or not _are_built_in(stage):
        return
    for taskset in stage.tasksets:
        need, text = RECORDS.get(taskset.workflow, ("", ""))
        if need and need not in needs_of(advantage):
            yield (
                f"`{taskset.workflow}` of taskset `{taskset.name}` computes {text} for each "
                f"answer, which `advantage_fn: {advantage}` does not read: choose an algorithm "
                "that does, or another workflow"
            )


def operator_is_not_read(stage: StagePlan) -> Iterator[str]:
    """Rewards that operators change, and numbers that they compute, may have no reader."""
    advantage, operators = stage.algorithm.advantage_fn, stage.operators
    for index, operator in enumerate(operators):
        later = [after.name for after in operators[index + 1 :]]
        if any(name not in OPERATORS.builtins for name in (operator.name, *later)):
            continue
        reason = WITHOUT_REWARDS.get(advantage)
        if operator.name in CHANGES_REWARDS and reason and not READS_REWARDS.intersection(later):
            yield (
                f"the rewards that `{operator.name}` changes are not trained on: "
                f"`advantage_fn: {advantage}` {reason}"
            )
        if operator.name == "data_juicer" and _maps_only(operator.args.get("operators")):
            yield (
                "`data_juicer` with mappers alone changes nothing: texts that it rewrites are not "
                "trained on, and mappers neither leave samples out nor measure them"
            )


def _maps_only(operators: JsonValue) -> bool:
    """Returns True if no operator of the list filters or counts."""
    listed = operators if isinstance(operators, list) else []
    names = [name for each in listed if isinstance(each, dict) for name in each]
    return bool(names) and all(name.endswith("_mapper") for name in names)


def task_score_is_not_read(stage: StagePlan) -> Iterator[str]:
    """Scores of tasks order them, or are columns for selectors."""
    for taskset in (*stage.tasksets, *stage.eval_tasksets):
        pipeline = taskset.task_pipeline
        if pipeline is None or pipeline.ordering.method not in ("keep", "shuffle"):
            continue
        for operator in pipeline.operators:
            name = str(operator.args.get("score") or operator.args.get("column"))
            if operator.name == "column_score" and name not in pipeline.added_scores:
                yield (
                    f"the score `{name}` that `column_score` gives the tasks of `{taskset.name}` "
                    f"is not read: `{pipeline.ordering.method}` orders without scores"
                )


UNUSED_PARTS = (
    reward_is_not_called,
    auxiliary_model_is_not_asked,
    record_is_not_read,
    operator_is_not_read,
    task_score_is_not_read,
)
