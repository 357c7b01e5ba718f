"""Advice on a plan: settings that are allowed but rarely intended."""

import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from trinity.algorithm.rollout_correction.settings import PRESETS
from trinity.algorithm.types import ALGORITHM_TYPES
from trinity.algorithm.units import COMPARES_NO_RUNS
from trinity.config.checks.algorithm import staleness_cause
from trinity.config.checks.data import placed_sample_rows, unread_beside_shards
from trinity.config.checks.rows import single_bad_rows
from trinity.config.checks.runtime import OF_THE_FILE
from trinity.config.checks.unread_keys import (
    auxiliary_buffers_unread,
    cooldown_in_steps,
    format_of_training_data,
    parts_start_fresh,
    repeat_times_ignored,
    unread_keys,
)
from trinity.config.checks.unused_parts import UNUSED_PARTS
from trinity.config.plan.arithmetic import (
    head_obstacle,
    head_settings,
    model_keys,
    model_keys_of,
)
from trinity.config.plan.model import missing_from_cache
from trinity.config.plan.model_code import model_code
from trinity.config.plan.parts import ResolvedRows
from trinity.config.plan.placement import gpu_demand_of
from trinity.config.plan.rollouts_ahead import largest_lag
from trinity.config.plan.rope import ROPE_KEYS
from trinity.config.plan.stage_plan import ExperimentPlan, StagePlan
from trinity.config.schema.choices import EXPLORING
from trinity.operators import OPERATORS
from trinity.runtime.json_values import JsonValue

_GUESSED_WORKFLOWS = {
    "math_workflow": "answers are graded as mathematics (`math_workflow`)",
    "simple_workflow": "one answer a task is given to the reward (`simple_workflow`)",
}
LOOKED_AT_STEPS = 100
"""Explore steps after which nothing new is expected."""

SAFE_LAG = re.compile(r"(?P<lag>\d+|none) \((?P<task>\w+)\)")
LEAST_TEMPERATURE = 0.01
"""vLLM takes this in the place of less, but for 0."""


def _override_config_differs_from_engine(stage: StagePlan) -> Iterator[str]:
    """Ratios compare the trainer's log-probabilities with the engine's."""
    keys = model_keys_of(stage.config.trainer.override_config).keys() - {"attn_implementation"}
    if not (keys and stage.needs_rollout):
        return
    both = "; `model.rope_scaling` and `model.rope_theta` reach both" if keys & ROPE_KEYS else ""
    yield (
        "`trainer.override_config` is laid over the trainer's models alone: where it changes "
        "what a model computes, tell the engine too "
        f"(`explorer.rollout_model.extra_engine_args.hf_overrides`){both}"
    )


def _models_bring_code(stage: StagePlan) -> Iterator[str]:
    """Model code can read all data of the process."""
    wanting = [(stage.model_path, stage.config.model.trust_remote_code)]
    wanting += [(m.model_path, m.engine.trust_remote_code) for m in stage.auxiliary_models]
    for path in sorted({path for path, wants in wanting if wants}):
        if code := model_code(path):
            yield (
                f"`trust_remote_code: true` runs {code} of the model {path} with all rights of "
                "explorer and trainer; where these have credentials, "
                "`TRINITY_TRUST_REMOTE_CODE=true` in their environment must allow it"
            )


def _engines_over_machines(stage: StagePlan) -> Iterator[str]:
    """`trinity run` starts all processes of an engine on its own machine."""
    node = stage.config.cluster.gpu_per_node
    for engines in gpu_demand_of(stage).engines if node else ():
        if engines.gpus_each > node:
            yield (
                f"an engine of {engines.gpus_each} GPUs ({engines.name}) is larger than a machine "
                f"of {node} (`cluster.gpu_per_node`): `trinity deploy render --overlay cluster` "
                "spreads it over several, and `trinity run` does not"
            )


def _head_is_whole(stage: StagePlan) -> Iterator[str]:
    """Keys that save the memory of logits have no effect on some models."""
    trainer = stage.config.trainer
    if not (stage.needs_training and head_settings(trainer).is_chunked):
        return
    keys = model_keys(Path(stage.model_path), trainer.override_config)
    if keys and (obstacle := head_obstacle(keys)) is not None:
        names = ("use_fused_kernels", "entropy_from_logits_with_chunking", "entropy_checkpointing")
        given = [f"`trainer.{name}: true`" for name in names if getattr(trainer, name)]
        yield (
            f"{', '.join(given)}: no effect on {stage.model_path}, {obstacle}: all logits of a "
            "micro-batch are in memory"
        )


def advise(plan: ExperimentPlan) -> tuple[str, ...]:
    """Returns one sentence for each setting worth a second look."""
    of_stages = (
        f"stage `{stage.name}`: {text}"
        for stage in plan.stages
        if stage.mode != "serve"
        for look in ADVICE_RULES
        for text in look(stage)
    )
    return (*of_stages, *_fetched(plan))


def _fetched(plan: ExperimentPlan) -> Iterator[str]:
    """Names that will be fetched from the hub; such a name may be a mistyped path."""
    for hub_name in missing_from_cache(plan):
        yield (
            f"{hub_name.place} is not here and not in the hub's cache: it is fetched from the "
            "hub at the start"
        )


def _truncated_sampling(stage: StagePlan) -> Iterator[str]:
    """Log-probabilities of a truncated distribution are not those that the trainer computes."""
    samplings = [taskset.sampling for taskset in stage.tasksets]
    for top_p in sorted({sampling.top_p for sampling in samplings if sampling.top_p < 1}):
        yield _truncates(f"top_p: {top_p}", "1.0")
    for top_k in sorted({sampling.top_k for sampling in samplings if sampling.top_k > 0}):
        yield _truncates(f"top_k: {top_k}", "-1")
    for penalty in sorted({sampling.repetition_penalty for sampling in samplings} - {1.0}):
        yield (
            f"training on samples of penalised repetition (`repetition_penalty: {penalty}`): "
            "ratios to the trainer's own log-probabilities are off; 1.0 does not penalise"
        )


def _greedy_rollouts(stage: StagePlan) -> Iterator[str]:
    """Greedy rollouts of a task are all alike, and no temperature gives them their probability."""
    if stage.needs_training and any(t.sampling.temperature == 0 for t in stage.tasksets):
        yield (
            "`temperature: 0` for training: all rollouts of a task are the same, so a group has "
            "nothing to compare, and their log-probabilities are taken at temperature 1; give "
            "more than 0"
        )
    for low in sorted({t.sampling.temperature for t in stage.tasksets} - {0.0}):
        if stage.needs_training and low < LEAST_TEMPERATURE:
            yield (
                f"`temperature: {low:g}` for training: vLLM draws at {LEAST_TEMPERATURE} at least, "
                f"and log-probabilities are taken at {low:g}; give {LEAST_TEMPERATURE} or more"
            )


def _truncates(setting: str, off: str) -> str:
    return (
        f"training on samples of a truncated distribution (`{setting}`): ratios to the trainer's "
        f"own log-probabilities are off; {off} does not truncate"
    )


def _calls_are_not_recorded(stage: StagePlan) -> Iterator[str]:
    rollout = stage.config.explorer.rollout_model
    if stage.needs_rollout and rollout.enable_openai_api and not rollout.enable_history:
        yield (
            "`explorer.rollout_model.enable_openai_api` answers calls, and none is kept to train "
            "on: `enable_history: true` lets a workflow take them as experiences"
        )


def _single_rollout_groups(stage: StagePlan) -> Iterator[str]:
    algorithm = stage.algorithm
    if algorithm.repeat_times > 1 or stage.mode not in EXPLORING:
        return
    declared = ALGORITHM_TYPES.get(algorithm.algorithm_type)
    compares = algorithm.advantage_fn not in COMPARES_NO_RUNS
    if declared.repeat_times > 1 and compares and algorithm.advantage_fn == declared.advantage_fn:
        yield (
            f"{declared.name} compares the rollouts of a task, and with "
            "`algorithm.repeat_times: 1`, which is the default, each stands alone: 2 or more gives "
            f"it a comparison, {declared.repeat_times} is usual"
        )


def _nothing_is_dropped(stage: StagePlan) -> Iterator[str]:
    """GFPO among all rollouts of a task is GRPO."""
    algorithm = stage.algorithm
    if algorithm.advantage_fn != "gfpo" or stage.mode not in EXPLORING:
        return
    num_kept = algorithm.advantage_fn_args["num_kept"]
    if isinstance(num_kept, int) and 1 < algorithm.repeat_times <= num_kept:
        yield (
            f"gfpo keeps {num_kept} rollouts of a task (`advantage_fn_args.num_kept`), and with "
            f"`repeat_times: {algorithm.repeat_times}` that is all of them: sample more, or keep "
            "fewer"
        )


def _staleness_below_usual(stage: StagePlan) -> Iterator[str]:
    """A bound below the age that rollouts have by plan costs most of them."""
    most = stage.algorithm.sampling.max_staleness
    if most is None or stage.has_dynamic_sync or not stage.needs_training:
        return
    usual = _usual_staleness(stage)
    if most < usual:
        yield (
            f"rollouts are up to {usual} train steps old when their turn comes, and "
            f"`max_staleness: {most}` leaves those out: {usual} keeps them"
        )


def _correction_rejects_stale(stage: StagePlan) -> Iterator[str]:
    """The engine's arithmetic moves a ratio far less than a train step does."""
    preset = stage.config.algorithm.rollout_correction.preset
    if preset == "none" or PRESETS[preset].tolerates_staleness or not stage.needs_rollout:
        return
    if cause := staleness_cause(stage):
        yield (
            f"`algorithm.rollout_correction.preset: {preset}` is made for engines that compute "
            f"otherwise, and with {cause} it leaves out nearly all rollouts as too old: `tis` "
            "weighs them instead"
        )


def _older_than_safe(stage: StagePlan) -> Iterator[str]:
    """Measured: older rollouts than these taught an algorithm nothing."""
    algorithm = stage.algorithm
    measured = SAFE_LAG.fullmatch(ALGORITHM_TYPES.get(algorithm.algorithm_type).safe_lag)
    if measured is None or algorithm.rollout_correction.is_on or not stage.needs_rollout:
        return
    safe = 0 if measured["lag"] == "none" else int(measured["lag"])
    varies = stage.has_dynamic_sync or stage.keeps_requests
    lag = largest_lag(stage) if varies else _usual_staleness(stage)
    most = algorithm.sampling.max_staleness
    lag = lag if most is None else min(lag, most)
    if lag > safe:
        yield (
            f"rollouts have a lag of up to {lag} train steps, and `{algorithm.algorithm_type}` was "
            f"measured to learn at {safe} at most (task `{measured['task']}`): "
            "`synchronizer.sync_offset: 0` has fresh ones, other algorithms take older ones"
        )


def _usual_staleness(stage: StagePlan) -> int:
    """Returns the largest lag of a rollout's weights, in train steps, if no rows are filtered."""
    steps = range(1, min(stage.total_explore_steps or LOOKED_AT_STEPS, LOOKED_AT_STEPS) + 1)
    rows, size = stage.rows_per_explore_step, stage.num_fresh_rows
    return max(
        (math.ceil(step * rows / size) - 1 - stage.required_version(step) for step in steps),
        default=0,
    )


def _workflow_is_guessed(stage: StagePlan) -> Iterator[str]:
    explorer_input = stage.config.buffer.explorer_input
    if stage.taskset is None or explorer_input.default_workflow_type is not None:
        return
    if any(taskset.default_workflow_type is None for _, taskset in explorer_input.written()):
        workflow = stage.taskset.workflow
        yield (
            f"no workflow is named, so {_GUESSED_WORKFLOWS.get(workflow, f'it is `{workflow}`')}: "
            "if that is not meant, give `buffer.explorer_input.default_workflow_type`"
        )


def _rows_above_micro_batch(stage: StagePlan) -> Iterator[str]:
    """Rows are not split: a row longer than the limit is a separate micro-batch."""
    tokens, longest = stage.config.trainer.max_token_len_per_gpu, stage.longest_unit
    if stage.needs_training and tokens is not None and tokens < longest:
        unit = "sequences" if longest == stage.max_model_len else "pairs of sequences"
        yield (
            f"`trainer.max_token_len_per_gpu: {tokens}` is less than the {longest} tokens of the "
            f"longest {unit}: a longer one is a micro-batch of its own, for which a GPU's memory "
            "must suffice"
        )


def _bench_without_tasksets(stage: StagePlan) -> Iterator[str]:
    if stage.mode == "bench" and not stage.eval_tasksets:
        yield (
            "`mode: bench` evaluates on `buffer.explorer_input.eval_tasksets`, and there are none: "
            "list the tasks there"
        )


def _shaped_by_nothing(stage: StagePlan) -> Iterator[str]:
    """A reward stays as it is where the number that shapes it is missing."""
    for index, operator in enumerate(stage.operators):
        if operator.name != "reward_shaping_mapper":
            continue
        if any(before.name not in OPERATORS.builtins for before in stage.operators[:index]):
            continue  # one of the user's own may make any number
        if any(before.name == "data_juicer" for before in stage.operators[:index]):
            continue
        configs = operator.args.get("reward_shaping_configs")
        keys = [config.get("stats_key") for config in _dicts(configs)]
        yield (
            f"`reward_shaping_mapper` reads {', '.join(f'`{key}`' for key in keys)}, which no "
            "operator before it makes: where the workflow does not record it as info or metric of "
            "a sample, rewards stay as they are"
        )


def _dicts(values: JsonValue) -> list[dict[str, JsonValue]]:
    listed = values if isinstance(values, list) else []
    return [value for value in listed if isinstance(value, dict)]


def _steps_are_explore_steps(stage: StagePlan) -> Iterator[str]:
    """Sizes and intervals of files that were written for batches of rows mean something else."""
    buffer, sync = stage.config.buffer, stage.config.synchronizer
    if not stage.trains_explore_steps or buffer.train_step != "auto":
        return
    given = []
    if buffer.train_batch_size not in (0, stage.rows_per_explore_step):
        given.append(
            f"`buffer.train_batch_size: {buffer.train_batch_size}` is the most rows of one"
        )
    if sync.sync_interval > 1:
        given.append(f"`synchronizer.sync_interval: {sync.sync_interval}` counts explore steps")
    if given:
        yield (
            "its workflow may give several samples a run, so a train step is an explore step, "
            "trained in one update of the weights or more: "
            f"{' and '.join(given)} (`buffer.train_step: rows` takes rows as they come)"
        )


def _batches_follow_the_clock(stage: StagePlan) -> Iterator[str]:
    buffer = stage.config.buffer.trainer_input.experience_buffer
    seconds = buffer.max_read_timeout
    if seconds is None or stage.experience_buffer.incomplete_after is None:
        return
    key = f"`buffer.trainer_input.experience_buffer.max_read_timeout: {seconds:g}`"
    longest = stage.config.explorer.max_timeout
    late = f"; a run may take {longest:g} s (`explorer.max_timeout`)" if longest >= seconds else ""
    yield (
        f"{key} trains on what is ready after that time, so batches depend on the clock and "
        f"another run may have others{late}: remove the key to have every batch complete"
    )


def _rows_given_up(stage: StagePlan) -> Iterator[str]:
    """Invalid task rows waste attempts, and make a step smaller."""
    for taskset in (*stage.tasksets, *stage.eval_tasksets):
        rows = [] if taskset.task_pipeline else placed_sample_rows(taskset)
        if sentence := single_bad_rows(taskset, rows):
            yield f"taskset `{taskset.name}`: {sentence}"


def _unread_files(stage: StagePlan) -> Iterator[str]:
    """Shards as on the hub are read alone."""
    sources: list[ResolvedRows] = [*stage.tasksets, *stage.eval_tasksets, stage.experience_buffer]
    yield from dict.fromkeys(filter(None, map(unread_beside_shards, sources)))


def _named_among_arguments(stage: StagePlan) -> Iterator[str]:
    """Trinity-RFT does not read these either: its monitors take them from the top of the file."""
    for name in filter(stage.config.monitor.monitor_args.__contains__, OF_THE_FILE):
        yield f"`monitor.monitor_args.{name}` does nothing: `{name}` at the top of the file says it"


ADVICE_RULES: tuple[Callable[[StagePlan], Iterator[str]], ...] = (
    _truncated_sampling,
    _greedy_rollouts,
    _calls_are_not_recorded,
    _single_rollout_groups,
    _nothing_is_dropped,
    _staleness_below_usual,
    _correction_rejects_stale,
    _older_than_safe,
    _named_among_arguments,
    cooldown_in_steps,
    repeat_times_ignored,
    format_of_training_data,
    _workflow_is_guessed,
    parts_start_fresh,
    *UNUSED_PARTS,
    unread_keys,
    _rows_above_micro_batch,
    auxiliary_buffers_unread,
    _bench_without_tasksets,
    _shaped_by_nothing,
    _batches_follow_the_clock,
    _rows_given_up,
    _unread_files,
    _steps_are_explore_steps,
    _override_config_differs_from_engine,
    _head_is_whole,
    _engines_over_machines,
    _models_bring_code,
)
