"""Keeps what a run began with as it goes on: defaults of before, units, dropout, arithmetic."""

import json
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any, TypeVar

from pydantic import BaseModel

from trinity.algorithm.units import UNIT_ARGUMENT, UNIT_BEFORE
from trinity.config.plan.arithmetic import Arithmetic
from trinity.config.plan.parts import ResolvedAlgorithm
from trinity.config.plan.stage_plan import ExperimentPlan, StagePlan
from trinity.config.schema.experiment import SINGLE_STAGE, Config
from trinity.run.launch.resume import PLAN_FILE
from trinity.types import JsonValue

S = TypeVar("S", bound=BaseModel)
BEGUN_DEFAULTS: Mapping[str, JsonValue] = {
    "trainer.use_remove_padding": False,
    "trainer.enable_gradient_checkpointing": False,
    "trainer.critic.enable_gradient_checkpointing": False,
}
"""Defaults of runs that were started before there was a choice of arithmetic."""


def kept_defaults(plan: ExperimentPlan) -> dict[str, JsonValue]:
    """Returns, by key, what the directory's run began with where this file leaves the key out.

    These keys have had other defaults: a run goes on with the values that it was started with.
    """
    path = plan.job_path / PLAN_FILE
    if not path.exists():
        return {}
    try:
        before = json.loads(path.read_text())["stages"]
        pairs = list(zip(before, plan.stages, strict=False))
        kept = [_kept_of_stage(old, stage) for old, stage in pairs]
    except (ValueError, KeyError, TypeError):
        return {}  # `check_resumable` says that it is damaged
    is_single = len(plan.stages) == 1 and plan.stages[0].name == SINGLE_STAGE
    return {
        key if is_single else f"stages[{index}].{key}": value
        for index, values in enumerate(kept)
        for key, value in values.items()
    }


def _kept_of_stage(old: dict[str, Any], stage: StagePlan) -> dict[str, JsonValue]:
    """Compares the values that act, for the configuration of before had another default."""
    kept: dict[str, JsonValue] = {}
    shortest = old["config"]["model"].get("min_response_tokens", 0)
    model = stage.config.model
    if "min_response_tokens" not in model.model_fields_set and shortest != (
        model.min_response_tokens
    ):
        kept["model.min_response_tokens"] = shortest
    times = old["algorithm"]["repeat_times"]
    if stage.config.algorithm.repeat_times is None and times != stage.algorithm.repeat_times:
        kept["algorithm.repeat_times"] = times
    return kept


def continue_as_begun(plan: ExperimentPlan) -> ExperimentPlan:
    """Returns the plan with the arithmetic and the units that its run began with.

    So its bits repeat, and groups are compared as before. A key that the user leaves at its default
    has the default that the run was started with. A plan that was never started, and one that
    `check_resumable` will refuse, stay as they are.
    """
    path = plan.job_path / PLAN_FILE
    if not path.exists():
        return plan
    former = path.read_text()
    return _with_arithmetic_of(as_begun_by(plan, former), former)


def _with_arithmetic_of(plan: ExperimentPlan, former: str) -> ExperimentPlan:
    try:
        before = json.loads(former)["stages"]
        begun = [Arithmetic.model_validate(stage.get("arithmetic", {})) for stage in before]
        if len(begun) != len(plan.stages):
            return plan
        stages = [
            _as_begun(stage, arithmetic, old)
            for stage, arithmetic, old in zip(plan.stages, begun, before, strict=True)
        ]
    except (ValueError, KeyError, TypeError, AttributeError):
        return plan
    return plan.model_copy(update={"stages": tuple(stages)})


def _as_begun(stage: StagePlan, begun: Arithmetic, old: dict[str, Any]) -> StagePlan:
    config = stage.config
    begun_with = Config.model_validate(old["config"])
    changed: dict[str, object] = {}
    if _sharing(config) != _sharing(begun_with):
        begun = begun.model_copy(update={"sequence_parallel_size": _sharing(config)})
    elif begun.sequence_parallel_size < _sharing(config):
        # The key did nothing, and so did not divide the default.
        changed["max_token_len_per_gpu"] = old["max_token_len_per_gpu"]
    if begun.version < stage.arithmetic.version:
        for key, value in BEGUN_DEFAULTS.items():
            path = key.split(".")
            is_default = _value_at(config, path) == _value_at(Config(), path)
            if is_default and _value_at(begun_with, path) == value:
                config = _with_value(config, path, value)
    changed |= {"arithmetic": begun, "config": config}
    return stage.model_copy(update=changed)


def _sharing(config: Config) -> int:
    return config.trainer.ulysses_sequence_parallel_size


def _value_at(section: BaseModel, path: Sequence[str]) -> object:
    return reduce(getattr, path, section)


def _with_value(section: S, path: Sequence[str], value: object) -> S:
    head, *rest = path
    inner = _with_value(getattr(section, head), rest, value) if rest else value
    return section.model_copy(update={head: inner})


def as_begun_by(plan: ExperimentPlan, former: str) -> ExperimentPlan:
    """Returns the plan with the behaviour of a former one that no key of its file sets.

    A plan of the version before does not say so: its baselines count samples, its models keep
    their dropout, its train steps are made of rows, and its actor's schedule counts the steps of
    `critic_warmup`.
    """
    try:
        before = {stage["name"]: stage for stage in json.loads(former)["stages"]}
        stages = tuple(_with_behaviour(stage, before.get(stage.name)) for stage in plan.stages)
    except (ValueError, KeyError, TypeError):
        return plan  # `check_resumable` says what is wrong with it
    return plan.model_copy(update={"stages": stages})


def _with_behaviour(stage: StagePlan, before: dict[str, Any] | None) -> StagePlan:
    if before is None:
        return stage
    begins_after = before["lr_schedule"].get("begins_after", 0)
    changed = {
        "algorithm": _with_unit(stage, before["algorithm"]["advantage_fn_args"]),
        "lr_schedule": stage.lr_schedule.model_copy(update={"begins_after": begins_after}),
        "keeps_dropout": before.get("keeps_dropout", True),
    }
    stage = stage.model_copy(update=changed)
    if stage.config.buffer.train_step != "auto":
        return stage
    return stage.with_train_step(before.get("train_step", "rows"))


def _with_unit(stage: StagePlan, before: dict[str, JsonValue]) -> ResolvedAlgorithm:
    algorithm, arguments = stage.algorithm, stage.algorithm.advantage_fn_args
    is_given = UNIT_ARGUMENT in stage.config.algorithm.advantage_fn_args
    if is_given or UNIT_ARGUMENT not in arguments:
        return algorithm
    own = {**arguments, UNIT_ARGUMENT: before.get(UNIT_ARGUMENT, UNIT_BEFORE)}
    return algorithm.model_copy(update={"advantage_fn_args": own})
