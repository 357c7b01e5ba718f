"""Advice on keys that have no effect, or another than they seem to have."""

from collections.abc import Iterator, Sequence

from trinity.config.plan.algorithm import ARGUMENTS_WITHOUT_EFFECT
from trinity.config.plan.experience_sink import experience_sink
from trinity.config.plan.stage_plan import StagePlan
from trinity.config.plan.start_checkpoint import KEY, find_start_checkpoint, has_optimizer
from trinity.config.schema.data import FormatConfig
from trinity.errors import UserError

OF_TRAINING_DATA = (
    "tools_key",
    "enable_concatenated_multi_turn",
    "chat_template",
    "enable_thinking",
)
"""Keys of `format` that make a row's tokens."""
FRESH = {
    "optimizer": "the optimizer's moments",
    "extra": "random states and the schedule",
}
"""Parts of a checkpoint that a run can go on without, in words."""


def storage_type_ignored(stage: StagePlan) -> Iterator[str]:
    """Storage of experiences, which files written for Trinity-RFT have to name."""
    if not stage.has_rollouts:
        return
    buffer = stage.config.buffer.trainer_input.experience_buffer
    if (sink := experience_sink(stage)) is not None:
        yield (
            f"experiences are also written to {sink.shown} "
            "(`buffer.trainer_input.experience_buffer.path`)"
        )
        return
    for name, value in (("storage_type", buffer.storage_type), ("path", buffer.path)):
        if value not in (None, "queue", ""):
            yield (
                f"`buffer.trainer_input.experience_buffer.{name}: {value}` has no effect in "
                f"`mode: {stage.mode}`: the buffer's database keeps every experience"
            )


def files_by_turns(stage: StagePlan) -> Iterator[str]:
    """Weights go from memory to memory only while both are awake."""
    if stage.takes_turns and stage.config.synchronizer.sync_method == "nccl":
        yield (
            "`synchronizer.sync_method: nccl` has no effect with `mode: colocate`: while the "
            "trainer has the GPU the engine sleeps, so it loads weights from files at its turn"
        )


def replay_keys_ignored(stage: StagePlan) -> Iterator[str]:
    """A number in Trinity-RFT's files is seconds."""
    buffer = stage.config.buffer.trainer_input.experience_buffer
    cooldown = buffer.replay_buffer.reuse_cooldown_time
    if stage.replay is None:
        keys = buffer.replay_buffer.model_fields_set - {"enable"}
        written = keys | ({"capacity"} & buffer.model_fields_set)
        if stage.needs_rollout and written:
            yield (
                f"`buffer.trainer_input.experience_buffer`: {', '.join(sorted(written))} has no "
                "effect without `replay_buffer.enable: true`"
            )
    elif isinstance(cooldown, float) and cooldown > 1:
        yield (
            f"`replay_buffer.reuse_cooldown_time: {cooldown:g}` counts train steps, not seconds: "
            f"a sample is trained again {stage.replay.cooldown_steps} steps later at the earliest; "
            f"`{cooldown:g}s` is seconds"
        )


def eval_interval_rounded(stage: StagePlan) -> Iterator[str]:
    configured, interval = stage.config.explorer.eval_interval, stage.eval_interval
    if stage.eval_tasksets and configured != interval:
        yield (
            f"`explorer.eval_interval: {configured}` is taken for {interval}, as there are new "
            f"weights every {stage.config.synchronizer.sync_interval} steps only "
            "(`synchronizer.sync_interval`)"
        )


def repeat_times_ignored(stage: StagePlan) -> Iterator[str]:
    """A group is as large as the algorithm says, whatever taskset its task is from."""
    explorer_input = stage.config.buffer.explorer_input
    tasksets = (explorer_input.taskset, *explorer_input.tasksets) if stage.needs_rollout else ()
    for own in sorted({taskset.repeat_times for taskset in tasksets if taskset is not None}):
        if own not in (1, stage.algorithm.repeat_times):
            yield (
                f"`repeat_times: {own}` of a taskset to train on has no effect: "
                f"`algorithm.repeat_times: {stage.algorithm.repeat_times}` counts"
            )


def micro_batch_keys_ignored(stage: StagePlan) -> Iterator[str]:
    """Micro-batches are cut by tokens or by rows."""
    trainer = stage.config.trainer
    if not stage.needs_training:
        return
    critic, is_by_tokens = trainer.critic, trainer.use_dynamic_bsz
    unread: dict[str, int | None] = {
        "max_token_len_per_gpu": trainer.max_token_len_per_gpu,
        "log_prob_max_token_len_per_gpu": trainer.log_prob_max_token_len_per_gpu,
        "critic.max_token_len_per_gpu": critic.max_token_len_per_gpu,
    }
    if is_by_tokens:
        unread = {
            "ppo_micro_batch_size_per_gpu": trainer.ppo_micro_batch_size_per_gpu,
            "log_prob_micro_batch_size_per_gpu": trainer.log_prob_micro_batch_size_per_gpu,
            "critic.ppo_micro_batch_size_per_gpu": critic.ppo_micro_batch_size_per_gpu,
        }
    given = [f"`trainer.{key}: {value}`" for key, value in unread.items() if value is not None]
    if given:
        written = (
            "true` cuts micro-batches by tokens" if is_by_tokens else "false` cuts them by rows"
        )
        yield f"{', '.join(given)}: no effect, as `trainer.use_dynamic_bsz: {written}"


def keep_steps_ignored(stage: StagePlan) -> Iterator[str]:
    """A resume from the oldest checkpoint needs every batch since."""
    keep_steps, trainer = stage.config.buffer.keep_steps, stage.config.trainer
    if keep_steps is not None and trainer.save_interval and not trainer.max_checkpoints_to_keep:
        yield (
            f"`buffer.keep_steps: {keep_steps}` removes nothing newer than the first checkpoint: "
            "all checkpoints are kept, see `trainer.max_checkpoints_to_keep`"
        )


def parts_start_fresh(stage: StagePlan) -> Iterator[str]:
    """Parts of a checkpoint that a run is to go on with, and that are not in it."""
    trainer = stage.config.trainer
    if not stage.needs_training or stage.mode == "bench":
        return
    wanted = [part for part in FRESH if part in trainer.load_contents]
    if unsaved := [part for part in wanted if part not in trainer.save_contents]:
        yield (
            f"`trainer.save_contents` leaves out {_quoted(unsaved)}, which `trainer.load_contents` "
            f"has: where the run goes on from its checkpoint, {_fresh(unsaved)} start fresh; add "
            "that to `save_contents`, or leave it out of both"
        )
    if "optimizer" in wanted and _begins_without_optimizer(stage):
        yield (
            f"`{KEY}: {stage.start_checkpoint}` holds no state of the optimizer, which "
            "`trainer.load_contents` has: it starts fresh; give a checkpoint that was saved with "
            "`optimizer`, or write `load_contents` without it"
        )


def _begins_without_optimizer(stage: StagePlan) -> bool:
    """Returns True if that is worth a word: whole weights never have an optimizer."""
    if stage.start_checkpoint is None:
        return False
    try:
        found = find_start_checkpoint(stage.start_checkpoint)
    except UserError:
        return False  # `check_start_checkpoint` tells it
    is_written = "load_contents" in stage.config.trainer.model_fields_set
    return not has_optimizer(found) and (is_written or not found.is_whole)


def _quoted(parts: Sequence[str]) -> str:
    return " and ".join(f"`{part}`" for part in parts)


def _fresh(parts: Sequence[str]) -> str:
    return " and ".join(FRESH[part] for part in parts)


def format_of_training_data(stage: StagePlan) -> Iterator[str]:
    """Tasks are rendered by the model's template or by their workflow."""
    usual = FormatConfig()
    for taskset in (*stage.tasksets, *stage.eval_tasksets):
        for name in OF_TRAINING_DATA:
            if getattr(taskset.format, name) != getattr(usual, name):
                yield (
                    f"`format.{name}` of `{taskset.name}` has no effect on tasks, only on training "
                    "data: `model` has what prompts are made with"
                )


def arguments_without_effect(stage: StagePlan) -> Iterator[str]:
    unread = ARGUMENTS_WITHOUT_EFFECT.get(stage.algorithm.policy_loss_fn, frozenset())
    given = [key for key in stage.config.algorithm.policy_loss_fn_args if key in unread]
    if given:
        yield (
            f"`algorithm.policy_loss_fn_args`: {', '.join(given)} has no effect: losses are means "
            "over the whole batch, and `expert_data_ratio` says how many of its rows are data"
        )


def loss_scale_factor_unread(stage: StagePlan) -> Iterator[str]:
    """Other modes divide by tokens or rows that there are."""
    factor = stage.config.algorithm.loss_scale_factor
    modes = {stage.algorithm.loss_agg_mode}
    if stage.needs_critic:
        modes.add(stage.config.trainer.critic.loss_agg_mode)
    if factor is not None and stage.needs_training and "seq-mean-token-sum-norm" not in modes:
        yield (
            f"`algorithm.loss_scale_factor: {factor}` divides nothing with `loss_agg_mode: "
            f"{stage.algorithm.loss_agg_mode}`: it is the divisor of `seq-mean-token-sum-norm`"
        )


def auxiliary_buffers_unread(stage: StagePlan) -> Iterator[str]:
    """Only `mix` takes rows from one of them."""
    read = stage.expert_buffer.name if stage.expert_buffer is not None else ""
    for buffer in stage.auxiliary_buffers:
        if buffer.name != read:
            strategy = stage.algorithm.sample_strategy
            takes = f"takes `{read}`" if read else "takes no rows of data"
            yield (
                f"`buffer.trainer_input.auxiliary_buffers.{buffer.name}` is not read: "
                f"`sample_strategy: {strategy}` {takes}; with `mix`, "
                f"`sample_strategy_args.sft_dataset_name: {buffer.name}` takes it"
            )


def critic_model_unread(stage: StagePlan) -> Iterator[str]:
    if stage.config.model.critic_model_path and not stage.needs_critic:
        yield (
            f"`model.critic_model_path: {stage.config.model.critic_model_path}` is not read: "
            f"`{stage.algorithm_type}` trains no critic"
        )


def experience_format_unread(stage: StagePlan) -> Iterator[str]:
    """Experiences come from workflows, which have the format of their taskset."""
    rows = stage.config.buffer.trainer_input.experience_buffer
    if stage.has_rollouts and rows.format != FormatConfig():
        yield (
            "`buffer.trainer_input.experience_buffer.format` is not read: experiences come from "
            "workflows; the columns of tasks are below their taskset's `format`"
        )


def min_response_lowered(stage: StagePlan) -> Iterator[str]:
    asked = stage.config.model.min_response_tokens
    if stage.needs_rollout and asked > max(stage.min_response_tokens, 1):
        yield (
            f"`model.min_response_tokens: {asked}` is taken for {stage.min_response_tokens}, as a "
            f"response has at most {stage.max_response_tokens} (`model.max_response_tokens`)"
        )


def eval_name_is_taken(stage: StagePlan) -> Iterator[str]:
    """The buffer knows tasks by the name of their taskset."""
    written = stage.config.buffer.explorer_input.eval_tasksets
    for own, taskset in zip(written, stage.eval_tasksets, strict=False):
        if own.name and own.name != taskset.name:
            yield (
                f"the evaluation taskset `{own.name}` is called `{taskset.name}`, as a taskset to "
                "train on has that name"
            )


def keys_ignored_on_data(stage: StagePlan) -> Iterator[str]:
    """Keys that a stage on data sets or inherits and that nothing reads."""
    if stage.has_rollouts:
        return
    algorithm = stage.config.algorithm
    is_given = {
        "sample_strategy": algorithm.sample_strategy not in (None, "default"),
        "advantage_fn": algorithm.advantage_fn not in (None, "none"),
        "kl_penalty_fn": algorithm.kl_penalty_fn not in (None, "none"),
        "bypass_old_logprobs": not algorithm.bypass_old_logprobs,
        "rollout_correction": algorithm.rollout_correction.settings.is_on,
    }
    for key in (key for key, is_there in is_given.items() if is_there):
        yield _has_no_effect(f"algorithm.{key}", stage)
    if stage.config.data_processor.experience_pipeline.operators:
        yield _has_no_effect("data_processor.experience_pipeline.operators", stage)


def _has_no_effect(key: str, stage: StagePlan) -> str:
    return f"`{key}` has no effect on `{stage.algorithm_type}`, which trains on data"
