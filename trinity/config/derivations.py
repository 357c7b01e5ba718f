"""Values that a plan fills in for keys that the user left open, each with its rule."""

from collections.abc import Iterator
from typing import NamedTuple

from pydantic import JsonValue

from trinity.config.algorithm_planning import PARTS
from trinity.config.plan import StagePlan
from trinity.config.plan_parts import ResolvedTaskset


class Derived(NamedTuple):
    """A key's value in the plan."""

    key: str
    value: JsonValue
    rule: str
    """Where it comes from if the user did not give it."""


def derived(stage: StagePlan) -> Iterator[Derived]:
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


def _algorithm(stage: StagePlan) -> Iterator[Derived]:
    algorithm = stage.algorithm
    rule = f"default of `{algorithm.algorithm_type}`"
    if stage.needs_rollout:
        yield Derived("algorithm.repeat_times", algorithm.repeat_times, rule)
    for part in PARTS:
        name: str = getattr(algorithm, part)
        yield Derived(f"algorithm.{part}", name, rule)
        arguments: dict[str, JsonValue] = getattr(algorithm, f"{part}_args")
        for argument, value in arguments.items():
            key = f"algorithm.{part}_args.{argument}"
            yield Derived(key, value, f"default of `{algorithm.algorithm_type}` or of `{name}`")
    yield Derived("algorithm.loss_agg_mode", algorithm.loss_agg_mode, f"{rule} or of its loss")


def _lengths(stage: StagePlan) -> Iterator[Derived]:
    yield Derived("model.model_path", stage.model_path, "absolute path")
    if stage.critic_model_path is not None:
        yield Derived("model.critic_model_path", stage.critic_model_path, "as `model_path`")
    yield Derived(
        "model.max_model_len", stage.max_model_len, "max_prompt_tokens + max_response_tokens"
    )
    rest = "what max_model_len leaves"
    yield Derived("model.max_prompt_tokens", stage.max_prompt_tokens, rest)
    yield Derived("model.max_response_tokens", stage.max_response_tokens, rest)
    below = "below max_response_tokens"
    yield Derived("model.min_response_tokens", stage.min_response_tokens, below)


def _sizes(stage: StagePlan) -> Iterator[Derived]:
    product = "batch_size x repeat_times"
    yield Derived("buffer.train_batch_size", stage.train_batch_size, product)
    if stage.needs_rollout and stage.total_explore_steps is not None:
        steps = "explore steps that trainer.total_steps needs"
        yield Derived("buffer.total_steps", stage.total_explore_steps, steps)
    if stage.total_train_steps is not None:
        steps = "train steps that buffer.total_steps make"
        yield Derived("trainer.total_steps", stage.total_train_steps, steps)
    yield Derived("trainer.rank_num", stage.trainer_rank_num, "GPUs that rollout leaves, or 1")
    tokens = "2 x max_model_len, without GPUs 16384 at least"
    yield Derived("trainer.max_token_len_per_gpu", stage.max_token_len_per_gpu, tokens)
    if stage.config.synchronizer.sync_method == "nccl":
        method = "nccl" if stage.sends_weights else "checkpoint"
        rule = "nccl only in mode both, between a trainer and an explorer"
        yield Derived("synchronizer.sync_method", method, rule)
    if stage.eval_tasksets:
        multiple = "a multiple of synchronizer.sync_interval"
        yield Derived("explorer.eval_interval", stage.eval_interval, multiple)


def _rows(stage: StagePlan) -> Iterator[Derived]:
    at, buffer = "buffer.trainer_input.experience_buffer", stage.experience_buffer
    yield Derived(f"{at}.storage_type", buffer.storage_type, f"what mode {stage.mode} has")
    yield Derived(f"{at}.path", buffer.path, "absolute path")
    yield Derived(f"{at}.data_selector.seed", buffer.selector.seed, "the top `seed`")
    for more in stage.auxiliary_buffers:
        at = f"buffer.trainer_input.auxiliary_buffers.{more.name}"
        yield Derived(f"{at}.storage_type", more.storage_type, "rows of data")
        yield Derived(f"{at}.path", more.path, "absolute path")
        yield Derived(f"{at}.data_selector.seed", more.selector.seed, "the top `seed`")


def _taskset(at: str, taskset: ResolvedTaskset) -> Iterator[Derived]:
    yield Derived(f"{at}.name", taskset.name, "its key")
    if taskset.path is not None:
        yield Derived(f"{at}.path", taskset.path, "absolute path")
    defaults = "explorer_input's default, else as the reward has it"
    yield Derived(f"{at}.default_workflow_type", taskset.workflow, defaults)
    if taskset.reward is not None:
        rule = "explorer_input's default"
        yield Derived(f"{at}.default_reward_fn_type", taskset.reward, rule)
    if not taskset.is_eval:
        yield Derived(f"{at}.repeat_times", taskset.repeat_times, "algorithm.repeat_times")
    sampling = taskset.sampling
    for name in ("temperature", "top_p", "top_k", "logprobs"):
        yield Derived(f"{at}.rollout_args.{name}", getattr(sampling, name), f"model.{name}")
    longest = "model.max_response_tokens"
    yield Derived(f"{at}.rollout_args.max_tokens", sampling.max_tokens, longest)
    yield Derived(f"{at}.data_selector.seed", taskset.selector.seed, "the top `seed`")
