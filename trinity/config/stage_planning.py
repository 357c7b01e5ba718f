"""From the merged configuration of one stage to its plan."""

from trinity.config.algorithm_check import check_algorithm
from trinity.config.algorithm_planning import resolve_algorithm
from trinity.config.learning_rate import LearningRateSchedule
from trinity.config.lengths import Lengths, resolve_lengths
from trinity.config.merging import Stage
from trinity.config.model_files import chat_template_of, located_critic, located_model
from trinity.config.operators import resolve_operators
from trinity.config.optimizer import OptimizerConfig
from trinity.config.plan import (
    ResolvedAlgorithm,
    ResolvedOperator,
    ResolvedTaskset,
    Role,
    StagePlan,
    fresh_rows,
)
from trinity.config.ranks import resolve_rank_num
from trinity.config.replay_planning import check_capacity
from trinity.config.resolve_data import (
    check_names,
    resolve_auxiliary_buffers,
    resolve_eval_tasksets,
    resolve_experience_buffer,
    resolve_train_tasksets,
)
from trinity.config.root import Config
from trinity.config.sampling import count_expert_rows
from trinity.config.steps import total_steps
from trinity.errors import UserError

LEAST_TOKENS_ON_CPU = 16384


def plan_stage(stage: Stage) -> StagePlan:
    """All that follows from one stage's configuration."""
    config, name = stage.config, stage.name
    algorithm = resolve_algorithm(config.algorithm, config.mode, name)
    lengths = resolve_lengths(config.model, name)
    rows = config.buffer.batch_size * algorithm.repeat_times if config.mode == "both" else 0
    batch = _train_batch_size(config, rows, name)
    num_expert_rows = count_expert_rows(algorithm, batch, name)
    experience_buffer = resolve_experience_buffer(config, config.mode, name)
    check_capacity(experience_buffer.replay, batch - num_expert_rows, name)
    steps = total_steps(
        config,
        rows_per_train_step=fresh_rows(experience_buffer.replay, batch - num_expert_rows, rows),
        rows_per_explore_step=rows,
    )
    tasksets, eval_tasksets = _tasksets(config, lengths, algorithm.repeat_times, name)
    plan = StagePlan(
        index=stage.index,
        name=name,
        mode=config.mode,
        roles=_roles(config),
        config=config,
        algorithm=algorithm,
        operators=_operators(config, name),
        model_path=located_model(config.model, name),
        critic_model_path=located_critic(config.model, name) if algorithm.needs_critic else None,
        chat_template=chat_template_of(config.model, name),
        max_model_len=lengths.model,
        max_prompt_tokens=lengths.prompt,
        max_response_tokens=lengths.response,
        min_response_tokens=lengths.min_response,
        train_batch_size=batch,
        num_expert_rows=num_expert_rows,
        rows_per_explore_step=rows,
        total_explore_steps=steps.explore,
        total_train_steps=steps.train,
        trainer_rank_num=resolve_rank_num(config, batch, name),
        max_token_len_per_gpu=_max_token_len(config, lengths, algorithm, name),
        tasksets=tasksets,
        eval_tasksets=eval_tasksets,
        eval_interval=_eval_interval(config),
        experience_buffer=experience_buffer,
        auxiliary_buffers=resolve_auxiliary_buffers(config, name),
        lr_schedule=_lr_schedule(config.algorithm.optimizer),
        critic_lr_schedule=_lr_schedule(config.trainer.critic.optimizer),
    )
    check_algorithm(plan)
    return plan


def _roles(config: Config) -> tuple[Role, ...]:
    return ("trainer", "explorer") if config.mode == "both" else ("trainer",)


def _operators(config: Config, stage: str) -> tuple[ResolvedOperator, ...]:
    """Data that is not rolled out passes no pipeline."""
    if config.mode != "both":
        return ()
    operators = config.data_processor.experience_pipeline.operators
    return resolve_operators(operators, config.service, stage)


def _train_batch_size(config: Config, rows_per_explore_step: int, stage: str) -> int:
    given = config.buffer.train_batch_size
    if given == 0 and config.mode == "train":
        raise UserError(
            f"stage `{stage}`: `buffer.train_batch_size` is missing: `mode: train` has no "
            "explore step to derive it from, give the rows of one train step"
        )
    return given or rows_per_explore_step


def _tasksets(
    config: Config, lengths: Lengths, repeat_times: int, stage: str
) -> tuple[tuple[ResolvedTaskset, ...], tuple[ResolvedTaskset, ...]]:
    if config.mode != "both":
        return (), ()
    tasksets = resolve_train_tasksets(config, lengths, repeat_times, stage)
    eval_tasksets = resolve_eval_tasksets(config, lengths, stage)
    auxiliary = config.buffer.trainer_input.auxiliary_buffers
    check_names([*(one.name for one in (*tasksets, *eval_tasksets)), *auxiliary], stage)
    return tasksets, eval_tasksets


def _eval_interval(config: Config) -> int:
    """Evaluations are pinned to a version, and versions come every `sync_interval` steps."""
    interval, sync = config.explorer.eval_interval, config.synchronizer.sync_interval
    return max(interval // sync, 1) * sync


def _max_token_len(
    config: Config, lengths: Lengths, algorithm: ResolvedAlgorithm, stage: str
) -> int:
    given = config.trainer.max_token_len_per_gpu
    is_paired = algorithm.row_schema == "dpo"
    least = 2 * lengths.model if is_paired else lengths.model
    if given is not None and given < least:
        what = (
            f"a pair of sequences of {lengths.model}" if is_paired else f"one sequence of {least}"
        )
        raise UserError(
            f"stage `{stage}`: `trainer.max_token_len_per_gpu: {given}` is less than {what} "
            f"tokens: give {least} or more"
        )
    return given or _usual_token_len(config, lengths)


def _usual_token_len(config: Config, lengths: Lengths) -> int:
    """Two of the longest sequences, which is what memory of a GPU is planned for.

    Without a GPU a micro-batch costs more than what is in it, as long as that is small.
    """
    two = 2 * lengths.model
    return two if config.cluster.gpu_per_node else max(two, LEAST_TOKENS_ON_CPU)


def _lr_schedule(optimizer: OptimizerConfig) -> LearningRateSchedule:
    return LearningRateSchedule(
        lr=optimizer.lr,
        kind=optimizer.lr_scheduler_type,
        warmup_steps=optimizer.lr_warmup_steps,
        warmup_ratio=optimizer.lr_warmup_steps_ratio,
        min_ratio=optimizer.min_lr_ratio,
    )
