"""Resolves tasksets and experience buffers: paths, selectors, sampling, defaults."""

import math
from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import partial
from typing import Literal

from pydantic import ValidationError

from trinity.algorithm.algorithm_type import RowSchema
from trinity.config.error_collector import ErrorCollector, all_of
from trinity.config.plan.auxiliary import usual_reward
from trinity.config.plan.lengths import SequenceLengths
from trinity.config.plan.parts import (
    CLIENTS,
    ResolvedAlgorithm,
    ResolvedExperienceBuffer,
    ResolvedSampling,
    ResolvedSelector,
    ResolvedTaskset,
)
from trinity.config.plan.pipelines import (
    attach_task_pipeline,
    check_task_operators,
    has_inputs,
    use_pipeline_inputs,
)
from trinity.config.plan.replay import resolve_replay
from trinity.config.plan.task_storage import database_address, resolve_data_path, resolve_path
from trinity.config.schema.buffer import ExplorerInput
from trinity.config.schema.choices import DifficultyConfig, Mode
from trinity.config.schema.data import (
    DataSelectorConfig,
    ExperienceBufferConfig,
    FormatConfig,
    TasksetConfig,
)
from trinity.config.schema.experiment import Config
from trinity.config.schema.explorer import RolloutModelConfig
from trinity.config.schema.model import ModelConfig
from trinity.errors import UserError
from trinity.operators.selectors import refusal

ANCHORS = 2

USUAL_IMAGES = "images"
"""Column of images with `enable_multimodal`, as in veRL."""
READ_SECONDS = 1800.0
"""The trainer's shortest wait for a batch before it gives up."""
FEEDBACK_SECONDS = 30 * 24 * 3600.0
"""How much longer rewards that come from people may take, unless the user says how long."""


def resolve_selector(selector: DataSelectorConfig, seed: int, key: str) -> ResolvedSelector:
    """Returns the selector; raises UserError if its features or arguments do not fit it."""
    if why := refusal(selector.selector_type):
        raise UserError(f"{key}`: {why}")
    _check_features(selector, key)
    return ResolvedSelector(
        selector_type=selector.selector_type,
        seed=seed if selector.seed is None else selector.seed,
        feature_keys=selector.feature_keys,
        difficulty=_difficulty(selector, key),
    )


def _check_features(selector: DataSelectorConfig, key: str) -> None:
    num_keys, kind = len(selector.feature_keys), selector.selector_type
    if kind == "difficulty_based" and num_keys != ANCHORS:
        raise UserError(
            f"{key}.data_selector.feature_keys` has {num_keys} columns: difficulty_based takes "
            "two, the pass rates of a weak and of a strong model"
        )
    if kind == "offline_easy2hard" and not num_keys:
        raise UserError(
            f"{key}.data_selector.feature_keys` is missing: offline_easy2hard sorts by it, "
            "name a column of numbers that are larger for easier rows"
        )
    if num_keys and kind not in ("difficulty_based", "offline_easy2hard"):
        raise UserError(f"{key}.data_selector.feature_keys` means nothing to {kind}: remove it")


def _difficulty(selector: DataSelectorConfig, key: str) -> DifficultyConfig | None:
    if selector.selector_type != "difficulty_based":
        if selector.kwargs:
            raise UserError(
                f"{key}.data_selector.kwargs` means nothing to {selector.selector_type}: remove it"
            )
        return None
    try:
        return DifficultyConfig.model_validate(selector.kwargs)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(map(str, first["loc"]))
        known = ", ".join(DifficultyConfig.model_fields)
        raise UserError(
            f"{key}.data_selector.kwargs.{name}`: {first['msg'].lower()}; the arguments of "
            f"difficulty_based are {known}"
        ) from error


def check_queue(tasksets: Sequence[ResolvedTaskset], config: Config, key: str) -> None:
    """Checks a queue: its length is unknown in advance, and its order is the order of arrival."""
    for taskset in tasksets:
        if taskset.storage_type != "queue":
            continue
        if len(tasksets) > 1:
            raise UserError(
                f"{key}`: `{taskset.name}` is a queue, which cannot be mixed with other tasksets: "
                "submit all tasks to it, or give it a separate stage"
            )
        if taskset.selector.selector_type != "sequential":
            raise UserError(
                f"{key}`: `{taskset.name}` is a queue, which gives tasks as they come: "
                "remove its `data_selector`"
            )
        if config.buffer.total_steps is None and config.trainer.total_steps is None:
            raise UserError(
                f"{key}`: `{taskset.name}` is a queue, which has no epochs: give "
                "`buffer.total_steps`"
            )


def check_clients(tasksets: Sequence[ResolvedTaskset], config: Config, key: str) -> None:
    """Checks a taskset of calls that clients commit."""
    if not any(taskset.is_of_clients for taskset in tasksets):
        return
    sync, what = config.synchronizer, f"the workflow `{CLIENTS}` trains calls that clients commit"
    if tasksets[0].storage_type != "queue":
        raise UserError(f"{key}`: {what}, which makes its tasks: give `storage_type: queue`")
    if config.mode != "both":
        raise UserError(f"`mode: {config.mode}`: {what}, while it is asked: give `mode: both`")
    if sync.sync_style == "fixed" and not sync.sync_offset:
        raise UserError(
            f"`synchronizer.sync_offset: 0`: {what} after newer weights may have come: give 1 or "
            "more"
        )
    if config.buffer.trainer_input.experience_buffer.replay_buffer.enable:
        raise UserError(f"`replay_buffer.enable`: {what} once: remove it")


def resolve_train_tasksets(
    config: Config, lengths: SequenceLengths, repeat_times: int, errors: ErrorCollector
) -> tuple[ResolvedTaskset, ...]:
    """The tasks to train on that have no errors."""
    explorer_input = config.buffer.explorer_input
    key = "`buffer.explorer_input.taskset"
    if explorer_input.taskset is not None and explorer_input.tasksets:
        said = f"{key}` and `tasksets` are both given: list all of them in `tasksets`"
        errors.add(UserError(said))
        return ()
    if not explorer_input.to_train_on:
        said = f"{key}` is missing: `mode: {config.mode}` needs tasks to explore"
        errors.add(UserError(said))
        return ()
    named = [
        (f"{key}s[{i}]", f"taskset_{i}", taskset)
        for i, taskset in enumerate(explorer_input.tasksets)
    ]
    if explorer_input.taskset is not None:
        named = [(key, "taskset", explorer_input.taskset)]
    named[0] = (*named[0][:2], use_pipeline_inputs(config, named[0][2]))
    resolve = partial(
        _resolve, config=config, lengths=lengths, repeat_times=repeat_times, is_eval=False
    )
    tasksets = _without_errors(
        [partial(resolve, taskset, key=at, default_name=name) for at, name, taskset in named],
        errors,
    )
    if len(tasksets) < len(named):
        errors.attempt(partial(check_task_operators, config))
        return tasksets
    try:
        check_queue(tasksets, config, f"{key}s")
        check_clients(tasksets, config, key)
        return (attach_task_pipeline(config, tasksets[0]), *tasksets[1:])
    except UserError as error:
        errors.add(error)
        return tasksets[1:]


def resolve_eval_tasksets(
    config: Config, lengths: SequenceLengths, errors: ErrorCollector
) -> tuple[ResolvedTaskset, ...]:
    """The tasks to evaluate on that have no errors."""
    resolve = partial(_resolve, config=config, lengths=lengths, is_eval=True)
    calls = [
        partial(
            resolve,
            taskset,
            key=f"`buffer.explorer_input.eval_tasksets[{i}]",
            default_name=f"eval_taskset_{i}",
            repeat_times=taskset.repeat_times,
        )
        for i, taskset in enumerate(config.buffer.explorer_input.eval_tasksets)
    ]
    return _without_errors(calls, errors)


def _without_errors(
    calls: Sequence[Callable[[], ResolvedTaskset]], errors: ErrorCollector
) -> tuple[ResolvedTaskset, ...]:
    return tuple(found for call in calls if (found := errors.attempt(call)) is not None)


def with_free_names(
    tasksets: Sequence[ResolvedTaskset], eval_tasksets: Sequence[ResolvedTaskset]
) -> tuple[ResolvedTaskset, ...]:
    """Calls an evaluation taskset `<name>_eval` if a taskset to train on has its name.

    What clients submit goes by the name that they know, and keeps it.
    """
    taken = {taskset.name for taskset in tasksets}
    free = taken | {taskset.name for taskset in eval_tasksets}
    return tuple(
        taskset.model_copy(update={"name": f"{taskset.name}_eval"})
        if taskset.name in taken
        and taskset.storage_type != "client"
        and f"{taskset.name}_eval" not in free
        else taskset
        for taskset in eval_tasksets
    )


def check_unique_names(names: Sequence[str]) -> None:
    """Checks that names are unique: the name of tasks or rows is their key in the buffer."""
    errors = [
        f"two of the tasksets of `buffer.explorer_input` and the auxiliary "
        f"buffers are called `{name}`: give each its own name"
        for name in dict.fromkeys(names)
        if names.count(name) > 1
    ]
    if errors:
        raise UserError("\n".join(errors))


def resolve_experience_buffer(
    config: Config, mode: Mode, schema: RowSchema
) -> ResolvedExperienceBuffer:
    """Resolves the trainer's rows: rollouts, or data in mode train."""
    buffer = config.buffer.trainer_input.experience_buffer
    key = "`buffer.trainer_input.experience_buffer"
    if mode != "train" or schema == "experience":
        made = _resolve_buffer(buffer, buffer.name, "queue", config.seed, key)
        seconds = _max_read_timeout(config, buffer)
        incomplete_after = buffer.max_read_timeout if mode == "both" else None
        return made.model_copy(
            update={"max_read_timeout": seconds, "incomplete_after": incomplete_after}
        )
    if buffer.storage_type == "queue" and not (buffer.path or has_inputs(config)):
        raise UserError(
            f"{key}.storage_type: queue` does not go with `mode: train`, where nothing fills it: "
            "give `storage_type: file` or `sql` and a `path`"
        )
    buffer = use_pipeline_inputs(config, buffer)
    rows = _resolve_buffer(buffer, buffer.name, _rows_storage(buffer, key), config.seed, key)
    return attach_task_pipeline(config, rows)


def _max_read_timeout(config: Config, buffer: ExperienceBufferConfig) -> float:
    """The default, or the written value if it is longer, and the time of awaited rewards."""
    awaited = config.buffer.feedback_timeout or FEEDBACK_SECONDS
    seconds = max(READ_SECONDS, buffer.max_read_timeout or 0.0)
    explorer_input = config.buffer.explorer_input
    usual = _default_workflow(explorer_input, is_eval=False)
    workflows = {own.default_workflow_type or usual for own in explorer_input.to_train_on}
    is_awaited = config.buffer.await_feedback or CLIENTS in workflows
    return seconds + (awaited if is_awaited else 0)


def resolve_auxiliary_buffers(config: Config) -> tuple[ResolvedExperienceBuffer, ...]:
    """Returns the buffers of data rows to mix with rollouts in batches, named by their keys."""
    buffers = config.buffer.trainer_input.auxiliary_buffers
    keys = {name: f"`buffer.trainer_input.auxiliary_buffers.{name}" for name in buffers}
    return all_of(
        [
            partial(_resolve_auxiliary, buffer, name, config.seed, keys[name])
            for name, buffer in buffers.items()
        ]
    )


def _resolve_auxiliary(
    buffer: ExperienceBufferConfig, name: str, seed: int, key: str
) -> ResolvedExperienceBuffer:
    if buffer.storage_type == "queue":
        raise UserError(f"{key}.storage_type: queue` is never filled: give file")
    if buffer.source_run:
        raise UserError(
            f"{key}.source_run`: experiences of another run are trained on by themselves: "
            "write it in `experience_buffer`, with `mode: train`"
        )
    return _resolve_buffer(buffer, name, _rows_storage(buffer, key), seed, key)


def _rows_storage(buffer: ExperienceBufferConfig, key: str) -> Literal["file", "sql"]:
    """Returns the storage of rows of data.

    Raises: UserError if the keys do not go together.
    """
    storage: Literal["file", "sql"] = "sql" if buffer.storage_type == "sql" else "file"
    if not buffer.path:
        raise UserError(f"{key}.path` is missing: `storage_type: {storage}` reads it")
    if buffer.table and storage == "file":
        raise UserError(f"{key}.table` goes with `storage_type: sql` only: remove one of the two")
    return storage


def _located(buffer: ExperienceBufferConfig, storage_type: str, key: str) -> str | None:
    """Path of the rows; None for an explorer's, which are in the buffer whatever path is given."""
    if not buffer.path or storage_type == "queue":
        return None
    return (
        database_address(buffer.path, key)
        if storage_type == "sql"
        else resolve_data_path(buffer.path)
    )


def _resolve_buffer(
    buffer: ExperienceBufferConfig,
    name: str,
    storage_type: Literal["queue", "file", "sql"],
    seed: int,
    key: str,
) -> ResolvedExperienceBuffer:
    if buffer.data_selector.selector_type == "difficulty_based":
        raise UserError(
            f"{key}.data_selector.selector_type`: difficulty_based learns from rollouts, which "
            "rows of data have none of: choose another"
        )
    replay = resolve_replay(buffer, key)
    if replay is not None and storage_type != "queue":
        raise UserError(
            f"{key}.replay_buffer.enable` orders what an explorer makes; rows of data come in "
            "the order of `data_selector`, and again with `buffer.total_epochs`: remove it"
        )
    return ResolvedExperienceBuffer(
        name=name or "experience_buffer",
        storage_type=storage_type,
        path=_located(buffer, storage_type, key),
        table=buffer.table or name if storage_type == "sql" else None,
        split=buffer.split,
        subset_name=buffer.subset_name,
        format=buffer.format,
        selector=resolve_selector(buffer.data_selector, seed, key),
        on_bad_row=buffer.on_bad_row,
        max_read_timeout=READ_SECONDS,
        replay=replay,
    )


def _resolve(
    taskset: TasksetConfig,
    *,
    config: Config,
    lengths: SequenceLengths,
    key: str,
    default_name: str,
    repeat_times: int,
    is_eval: bool,
) -> ResolvedTaskset:
    errors = ErrorCollector()
    if is_eval and taskset.storage_type == "queue":
        said = (
            f"{key}.storage_type`: an evaluation takes the same tasks each time, which a queue "
            "does not have: give client"
        )
        errors.add(UserError(said))
    kind = taskset.data_selector.selector_type
    if kind == "difficulty_based" and config.mode == "explore" and not is_eval:
        said = (
            f"{key}.data_selector.selector_type`: difficulty_based learns from the batches of a "
            "trainer, which `mode: explore` has none of: choose another"
        )
        errors.add(UserError(said))
    defaults = config.buffer.explorer_input
    named = taskset.default_workflow_type or _default_workflow(defaults, is_eval)
    reward = taskset.default_reward_fn_type or defaults.default_reward_fn_type
    if reward is None and not taskset.format.reward_fn_key:
        reward = usual_reward(config, named)
    workflow = named or _guessed_workflow(taskset, reward)
    path = errors.attempt(partial(resolve_path, taskset, key, workflow))
    selector = errors.attempt(partial(resolve_selector, taskset.data_selector, config.seed, key))
    errors.raise_all()
    assert selector is not None
    return ResolvedTaskset(
        name=taskset.name or default_name,
        storage_type=taskset.storage_type,
        path=path,
        table=(taskset.table or taskset.name or default_name)
        if taskset.storage_type == "sql"
        else None,
        split=taskset.split,
        subset_name=taskset.subset_name,
        is_eval=is_eval,
        repeat_times=repeat_times,
        workflow=workflow,
        workflow_args=taskset.workflow_args,
        reward=reward,
        reward_args=taskset.reward_fn_args,
        format=_with_images(taskset.format, config.explorer.rollout_model),
        sampling=_sampling(taskset, config.model, lengths),
        selector=selector,
    )


def _with_images(form: FormatConfig, engine: RolloutModelConfig) -> FormatConfig:
    if form.image_key is not None or not engine.enable_multimodal:
        return form
    return form.model_copy(update={"image_key": USUAL_IMAGES})


def _default_workflow(defaults: ExplorerInput, is_eval: bool) -> str | None:
    for_eval = defaults.default_eval_workflow_type if is_eval else None
    return for_eval or defaults.default_workflow_type


def _guessed_workflow(taskset: TasksetConfig, reward: str | None) -> str:
    """Guesses a workflow of one question and answer: by the named reward, else as maths.

    Files of Trinity-RFT's guide on veRL name no workflow. The guess is always reported, since a
    wrong workflow would grade every answer 0.
    """
    has_reward = reward is not None or bool(taskset.format.reward_fn_key)
    return "simple_workflow" if has_reward else "math_workflow"


def _sampling(
    taskset: TasksetConfig, model: ModelConfig, lengths: SequenceLengths
) -> ResolvedSampling:
    own = taskset.rollout_args
    max_tokens = lengths.response if own.max_tokens is None else own.max_tokens
    return ResolvedSampling(
        temperature=model.temperature if own.temperature is None else own.temperature,
        top_p=model.top_p if own.top_p is None else own.top_p,
        top_k=model.top_k if own.top_k is None else own.top_k,
        max_tokens=max_tokens,
        min_tokens=min(lengths.min_response, max_tokens - 1),
        repetition_penalty=model.repetition_penalty,
        logprobs=model.logprobs if own.logprobs is None else own.logprobs,
    )


def with_only_buffer(algorithm: ResolvedAlgorithm, config: Config) -> ResolvedAlgorithm:
    """Gives a mixing strategy the only auxiliary buffer, unless the user names a buffer."""
    key, buffers = "sft_dataset_name", [*config.buffer.trainer_input.auxiliary_buffers]
    taken = algorithm.sampling.expert_buffer
    is_named = key in config.algorithm.sample_strategy_args
    if taken is None or taken in buffers or len(buffers) != 1 or is_named:
        return algorithm
    args = {**algorithm.sample_strategy_args, key: buffers[0]}
    return algorithm.model_copy(update={"sample_strategy_args": args})


def count_expert_rows(algorithm: ResolvedAlgorithm, train_batch_size: int) -> int:
    """Returns the number of data rows in each batch; the rest are rollouts.

    Raises: UserError if the strategy rejects its arguments, or if no row is left to rollouts.
    """
    try:
        ratio = algorithm.sampling.expert_data_ratio
    except UserError as error:
        raise UserError(f"`algorithm.sample_strategy_args`: {error}") from error
    # Decimal as written: 0.07 of 100 rows are 7; the binary fraction would make them 8.
    num_rows = math.ceil(Decimal(str(ratio)) * train_batch_size)
    if num_rows >= train_batch_size:
        raise UserError(
            f"`expert_data_ratio: {ratio}` of a batch of {train_batch_size} rows "
            "leaves none to rollouts: lower it, or raise `buffer.train_batch_size`"
        )
    return num_rows
