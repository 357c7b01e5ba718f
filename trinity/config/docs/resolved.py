"""The configuration that runs: every value that acts, with the origin of each."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from pydantic import JsonValue

from trinity.config.loading import keys
from trinity.config.loading.source import ConfigSource
from trinity.config.plan.algorithm import PARTS
from trinity.config.plan.parts import ResolvedTaskset
from trinity.config.plan.stage_plan import ExperimentPlan, StagePlan
from trinity.config.schema.experiment import SINGLE_STAGE

OF_EXPERIMENT = (
    "project",
    "group",
    "name",
    "tenant",
    "seed",
    "checkpoint_root_dir",
    "continue_from_checkpoint",
    "log",
    "service",
)
"""Keys that a stage cannot override."""
DEFAULT = "default"
ABSOLUTE = "absolute path"


class DerivedValue(NamedTuple):
    """A key's value in the plan."""

    key: str
    value: JsonValue
    rule: str
    """Where it comes from if the user did not give it."""


def derived_values(stage: StagePlan) -> Iterator[DerivedValue]:
    """Yields the keys whose value in a stage is not simply the written one."""
    if stage.mode == "serve":
        yield from _lengths(stage)
        return
    yield from _algorithm(stage)
    yield from _lengths(stage)
    yield from _sizes(stage)
    yield from _rows(stage)
    at = "buffer.explorer_input"
    is_listed = bool(stage.config.buffer.explorer_input.tasksets)
    for position, taskset in enumerate(stage.tasksets):
        place = f"{at}.tasksets[{position}]" if is_listed else f"{at}.taskset"
        yield from _taskset(place, taskset)
    for position, taskset in enumerate(stage.eval_tasksets):
        yield from _taskset(f"{at}.eval_tasksets[{position}]", taskset)


def _algorithm(stage: StagePlan) -> Iterator[DerivedValue]:
    algorithm = stage.algorithm
    rule = f"default of `{algorithm.algorithm_type}`"
    if stage.needs_rollout:
        yield DerivedValue("algorithm.repeat_times", algorithm.repeat_times, "1 unless given")
    for part in PARTS:
        name: str = getattr(algorithm, part)
        yield DerivedValue(f"algorithm.{part}", name, rule)
        arguments: dict[str, JsonValue] = getattr(algorithm, f"{part}_args")
        for argument, value in arguments.items():
            key = f"algorithm.{part}_args.{argument}"
            yield DerivedValue(
                key, value, f"default of `{algorithm.algorithm_type}` or of `{name}`"
            )
    yield DerivedValue("algorithm.loss_agg_mode", algorithm.loss_agg_mode, f"{rule} or of its loss")


def _lengths(stage: StagePlan) -> Iterator[DerivedValue]:
    rest, as_policy = "what max_model_len leaves", "as `model_path`"
    for key, value, rule in (
        ("model.model_path", stage.model_path, ABSOLUTE),
        ("model.critic_model_path", stage.critic_model_path, as_policy),
        ("algorithm.distillation.model_path", stage.teacher_model_path, as_policy),
        ("model.max_model_len", stage.max_model_len, "max_prompt_tokens + max_response_tokens"),
        ("model.max_prompt_tokens", stage.max_prompt_tokens, rest),
        ("model.max_response_tokens", stage.max_response_tokens, rest),
        ("model.min_response_tokens", stage.min_response_tokens, "below max_response_tokens"),
    ):
        if value is not None:
            yield DerivedValue(key, value, rule)


def _sizes(stage: StagePlan) -> Iterator[DerivedValue]:
    product = "batch_size x repeat_times"
    yield DerivedValue("buffer.train_batch_size", stage.train_batch_size, product)
    if stage.has_rollouts and stage.needs_training:
        rule = "explore_step where a workflow has gives_several_samples"
        yield DerivedValue("buffer.train_step", stage.train_step, rule)
    if stage.needs_rollout and stage.total_explore_steps is not None:
        steps = "explore steps that trainer.total_steps needs"
        yield DerivedValue("buffer.total_steps", stage.total_explore_steps, steps)
    if stage.total_train_steps is not None:
        steps = "train steps that buffer.total_steps make"
        yield DerivedValue("trainer.total_steps", stage.total_train_steps, steps)
    yield DerivedValue("trainer.rank_num", stage.trainer_rank_num, "GPUs that rollout leaves, or 1")
    tokens = "2 x max_model_len, without GPUs 16384 at least"
    yield DerivedValue("trainer.max_token_len_per_gpu", stage.max_token_len_per_gpu, tokens)
    if stage.config.synchronizer.sync_method == "nccl":
        method = "nccl" if stage.transfers_weights_in_memory else "checkpoint"
        rule = "nccl only in mode both, between a trainer and engines without data_parallel_size"
        yield DerivedValue("synchronizer.sync_method", method, rule)
    if stage.eval_tasksets:
        multiple = "a multiple of synchronizer.sync_interval"
        yield DerivedValue("explorer.eval_interval", stage.eval_interval, multiple)


def _rows(stage: StagePlan) -> Iterator[DerivedValue]:
    above = "buffer.trainer_input"
    of_mode = (f"{above}.experience_buffer", stage.experience_buffer, f"what mode {stage.mode} has")
    more = (
        (f"{above}.auxiliary_buffers.{b.name}", b, "rows of data") for b in stage.auxiliary_buffers
    )
    for at, buffer, rule in (of_mode, *more):
        yield DerivedValue(f"{at}.storage_type", buffer.storage_type, rule)
        yield DerivedValue(f"{at}.path", buffer.path, ABSOLUTE)
        yield DerivedValue(f"{at}.data_selector.seed", buffer.selector.seed, "the top `seed`")


def _taskset(at: str, taskset: ResolvedTaskset) -> Iterator[DerivedValue]:
    yield DerivedValue(f"{at}.name", taskset.name, "its key")
    if taskset.path is not None:
        yield DerivedValue(f"{at}.path", taskset.path, ABSOLUTE)
    defaults = "explorer_input's default, else as the reward has it"
    yield DerivedValue(f"{at}.default_workflow_type", taskset.workflow, defaults)
    if taskset.reward is not None:
        rule = "explorer_input's default, else the model that scores"
        yield DerivedValue(f"{at}.default_reward_fn_type", taskset.reward, rule)
    if not taskset.is_eval:
        yield DerivedValue(f"{at}.repeat_times", taskset.repeat_times, "algorithm.repeat_times")
    sampling = taskset.sampling
    for name in ("temperature", "top_p", "top_k", "logprobs"):
        yield DerivedValue(f"{at}.rollout_args.{name}", getattr(sampling, name), f"model.{name}")
    longest = "model.max_response_tokens"
    yield DerivedValue(f"{at}.rollout_args.max_tokens", sampling.max_tokens, longest)
    yield DerivedValue(f"{at}.data_selector.seed", taskset.selector.seed, "the top `seed`")


@dataclass(slots=True)
class ResolvedConfig:
    """Values as a tree that is a configuration again, with the origin of each by dotted key."""

    tree: dict[str, Any]
    origins: dict[str, str]

    def leaves(self) -> Iterator[tuple[str, Any]]:
        """Dotted key and value, lists entered."""
        yield from dotted_leaves(self.tree)


def resolve_config(plan: ExperimentPlan, source: ConfigSource) -> ResolvedConfig:
    """Resolves an experiment; a single stage is at the top level, several are in `stages`."""
    first = plan.stages[0]
    whole = ResolvedConfig({}, {})
    is_single = len(plan.stages) == 1 and first.name == SINGLE_STAGE
    for name, value in _written(first).items():
        if name in OF_EXPERIMENT:
            whole.tree[name] = value
    if is_single:
        _add_stage(whole, first, source, ())
    else:
        whole.tree["stages"] = [{"stage_name": stage.name} for stage in plan.stages]
        for stage in plan.stages:
            _add_stage(whole, stage, source, ("stages", stage.index))
    _add_origins(whole, source)
    return whole


def _written(stage: StagePlan) -> dict[str, Any]:
    dumped: dict[str, Any] = stage.config.model_dump(mode="json", exclude={"stages"})
    return dumped


def _add_stage(
    whole: ResolvedConfig, stage: StagePlan, source: ConfigSource, at: keys.Location
) -> None:
    place = keys.get(whole.tree, at)
    own = {key: value for key, value in _written(stage).items() if key not in OF_EXPERIMENT}
    place.update(_without_empty(own))
    for key, value, rule in derived_values(stage):
        location = (*at, *keys.parse_key(key))
        origin = _origin(location, source)
        written = keys.get(whole.tree, location) if keys.has(whole.tree, location) else None
        if written != value or origin is None:
            is_default = written == value and not isinstance(value, dict)
            is_path = rule == ABSOLUTE
            text = origin if origin and is_path else f"{rule}" + (f", {origin}" if origin else "")
            whole.origins[keys.to_dotted(location)] = DEFAULT if is_default else text
        keys.put(whole.tree, location, value)


def _add_origins(whole: ResolvedConfig, source: ConfigSource) -> None:
    """Fills in the origin of the remaining keys."""
    for key, _ in whole.leaves():
        if key not in whole.origins:
            whole.origins[key] = _origin(keys.parse_key(key), source) or DEFAULT


def _origin(location: keys.Location, source: ConfigSource) -> str | None:
    """The origin of the stage's own key, else of the global one."""
    own = source.origin(keys.to_dotted(location))
    return own or source.origin(keys.to_dotted(location[len(keys.stage_location(location)) :]))


def _without_empty(tree: dict[str, Any]) -> dict[str, Any]:
    pruned = {
        key: _without_empty(value) if isinstance(value, dict) else value
        for key, value in tree.items()
    }
    return {key: value for key, value in pruned.items() if value != {}}


def dotted_leaves(tree: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the values of a tree by dotted keys; empty sections and plain lists are values."""
    if isinstance(tree, dict) and tree:
        for name, value in tree.items():
            yield from dotted_leaves(value, f"{key}.{name}" if key else str(name))
    elif isinstance(tree, list) and any(isinstance(item, dict) for item in tree):
        for position, value in enumerate(tree):
            yield from dotted_leaves(value, f"{key}[{position}]")
    else:
        yield key, tree
