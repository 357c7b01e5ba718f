"""Advice on keys that have no effect in a stage, or a different one than expected."""

from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter

from trinity.config.plan.stage_plan import StagePlan
from trinity.config.plan.start_checkpoint import KEY, find_start_checkpoint, has_optimizer
from trinity.config.schema.base import format_value
from trinity.config.schema.data import FormatConfig
from trinity.config.schema.experiment import Config
from trinity.errors import UserError

Reason = Callable[[StagePlan], str]
"""Returns the reason for which a key does nothing in a stage; empty if it acts."""

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
_ROWS = "buffer.trainer_input.experience_buffer"
_NORM = "seq-mean-token-sum-norm"
_OFF = (None, "none", "default")


def _unless(acts: Callable[[StagePlan], object], why: str) -> Reason:
    return lambda stage: "" if acts(stage) else why


def _on_data(stage: StagePlan) -> str:
    return "" if stage.has_rollouts else f"`{stage.algorithm_type}` trains on data"


def _without_replay(stage: StagePlan) -> str:
    acts = stage.replay is not None or not stage.needs_rollout
    return "" if acts else "`replay_buffer.enable` is false"


def _divides(stage: StagePlan) -> bool:
    of_critic = stage.needs_critic and stage.config.trainer.critic.loss_agg_mode == _NORM
    return of_critic or stage.algorithm.loss_agg_mode == _NORM or not stage.needs_training


def _by_rows(stage: StagePlan) -> str:
    is_by_rows = stage.needs_training and not stage.config.trainer.use_dynamic_bsz
    return "`trainer.use_dynamic_bsz: false` cuts micro-batches by rows" if is_by_rows else ""


def _by_tokens(stage: StagePlan) -> str:
    is_by_tokens = stage.needs_training and stage.config.trainer.use_dynamic_bsz
    return "`trainer.use_dynamic_bsz: true` cuts micro-batches by tokens" if is_by_tokens else ""


def _stored_staleness(stage: StagePlan) -> str:
    has_bound = stage.algorithm.sampling.max_staleness is not None
    if stage.stored_rollouts is None or not has_bound:
        return ""
    return "`max_staleness` leaves out no stored experience, made with another stage's weights"


def _keeps_checkpoints(stage: StagePlan) -> bool:
    trainer = stage.config.trainer
    return bool(trainer.save_interval and not trainer.max_checkpoints_to_keep)


def _is_fully_async(stage: StagePlan) -> bool:
    return stage.config.synchronizer.sync_style == "fully_async"


def _in_bench(stage: StagePlan) -> str:
    return "`mode: bench` evaluates each version by itself" if stage.mode == "bench" else ""


UNREAD: Mapping[str, Reason] = {
    "algorithm.sample_strategy": _on_data,
    "algorithm.sample_strategy_args": _stored_staleness,
    "algorithm.advantage_fn": _on_data,
    "algorithm.kl_penalty_fn": _on_data,
    "algorithm.bypass_old_logprobs": _on_data,
    "algorithm.rollout_correction": _on_data,
    "data_processor.experience_pipeline.operators": _on_data,
    "algorithm.loss_scale_factor": _unless(_divides, f"only `loss_agg_mode: {_NORM}` divides"),
    "model.critic_model_path": _unless(attrgetter("needs_critic"), "no critic is trained"),
    f"{_ROWS}.format": _unless(
        lambda stage: not stage.has_rollouts,
        "experiences come from workflows; the columns of tasks are in their taskset's `format`",
    ),
    f"{_ROWS}.max_read_timeout": _unless(
        lambda stage: stage.experience_buffer.incomplete_after is not None,
        "no trainer waits for rollouts in this mode",
    ),
    f"{_ROWS}.replay_buffer": _without_replay,
    f"{_ROWS}.capacity": _without_replay,
    "buffer.keep_steps": _unless(
        lambda stage: not _keeps_checkpoints(stage),
        "all checkpoints are kept, and a resume from the first needs every batch since: see "
        "`trainer.max_checkpoints_to_keep`",
    ),
    "explorer.max_inflight_batches": _unless(
        _is_fully_async, "only `synchronizer.sync_style: fully_async` counts batches on their way"
    ),
    "synchronizer.sync_offset": lambda stage: (
        "`explorer.max_inflight_batches` takes its place" if _is_fully_async(stage) else ""
    ),
    "synchronizer.weight_update": _in_bench,
    "synchronizer.sync_style": _in_bench,
    "explorer.over_rollout.ratio": _unless(
        lambda stage: stage.num_droppable_tasks or not stage.needs_rollout,
        "it is less than one of the tasks of `buffer.batch_size`",
    ),
    "trainer.max_token_len_per_gpu": _by_rows,
    "trainer.log_prob_max_token_len_per_gpu": _by_rows,
    "trainer.critic.max_token_len_per_gpu": _by_rows,
    "trainer.ppo_micro_batch_size_per_gpu": _by_tokens,
    "trainer.log_prob_micro_batch_size_per_gpu": _by_tokens,
    "trainer.critic.ppo_micro_batch_size_per_gpu": _by_tokens,
}
"""Keys that may have no effect, each with a function that returns the reason if so."""


def unread_keys(stage: StagePlan) -> Iterator[str]:
    """Yields a sentence for each key of the table that is given and has no effect."""
    usual = Config()
    for key, reason in UNREAD.items():
        value = attrgetter(key)(stage.config)
        if value not in _OFF and value != attrgetter(key)(usual) and (why := reason(stage)):
            is_plain = isinstance(value, str | int | float)
            shown = f"{key}: {format_value(key, value)}" if is_plain else key
            yield f"`{shown}` has no effect: {why}"


def cooldown_in_steps(stage: StagePlan) -> Iterator[str]:
    """A number in Trinity-RFT's files is seconds."""
    replay = stage.config.buffer.trainer_input.experience_buffer.replay_buffer
    cooldown = replay.reuse_cooldown_time
    if stage.replay is not None and isinstance(cooldown, float) and cooldown > 1:
        yield (
            f"`replay_buffer.reuse_cooldown_time: {cooldown:g}` counts train steps, not seconds: "
            f"a sample is trained again {stage.replay.cooldown_steps} steps later at the earliest; "
            f"`{cooldown:g}s` is seconds"
        )


def repeat_times_ignored(stage: StagePlan) -> Iterator[str]:
    """A group is as large as the algorithm says, whatever taskset its task is from."""
    tasksets = stage.config.buffer.explorer_input.to_train_on if stage.needs_rollout else ()
    for own in sorted({taskset.repeat_times for taskset in tasksets}):
        if own not in (1, stage.algorithm.repeat_times):
            yield (
                f"`repeat_times: {own}` of a taskset to train on has no effect: "
                f"`algorithm.repeat_times: {stage.algorithm.repeat_times}` counts"
            )


def parts_start_fresh(stage: StagePlan) -> Iterator[str]:
    """Parts of a checkpoint that a run is to go on with, and that are not in it."""
    trainer = stage.config.trainer
    if not stage.needs_training or stage.mode == "bench":
        return
    wanted = [part for part in FRESH if part in trainer.load_contents]
    if unsaved := [part for part in wanted if part not in trainer.save_contents]:
        yield (
            f"`trainer.save_contents` leaves out {_joined(f'`{part}`' for part in unsaved)}, which "
            "`trainer.load_contents` has: where the run goes on from its checkpoint, "
            f"{_joined(FRESH[part] for part in unsaved)} start fresh; add that to `save_contents`, "
            "or leave it out of both"
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


def _joined(parts: Iterator[str]) -> str:
    return " and ".join(parts)


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
