"""Derives the plan of an experiment, stage by stage, from its configuration."""

from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple

from trinity.config.checks.addresses import check_addresses
from trinity.config.checks.algorithm import check_algorithm
from trinity.config.checks.model import check_attention, resolve_adapter_path
from trinity.config.checks.runtime import (
    check_best_taskset,
    check_monitor_args,
    check_placement,
    check_serve_is_single_stage,
    check_serving,
    check_tool_calls,
    check_turns,
    check_weight_update,
)
from trinity.config.error_collector import ErrorCollector
from trinity.config.plan.algorithm import resolve_algorithm
from trinity.config.plan.auxiliary import resolve_auxiliary_models
from trinity.config.plan.data import (
    check_unique_names,
    resolve_auxiliary_buffers,
    resolve_eval_tasksets,
    resolve_experience_buffer,
    resolve_train_tasksets,
    with_free_names,
    with_only_buffer,
)
from trinity.config.plan.lengths import SequenceLengths, resolve_lengths
from trinity.config.plan.model import (
    chat_template_of,
    check_template_kwargs,
    is_external,
    locate_model,
    resolve_external_model,
    resolve_model_path,
)
from trinity.config.plan.parts import (
    AuxiliaryModel,
    ResolvedAlgorithm,
    ResolvedExperienceBuffer,
    ResolvedOperator,
    ResolvedTaskset,
    fresh_rows,
    total_steps,
)
from trinity.config.plan.pipelines import resolve_operators
from trinity.config.plan.replay import check_capacity
from trinity.config.plan.sizes import (
    BatchSizes,
    RolloutGpus,
    check_same_cluster,
    largest_rollout,
    resolve_sizes,
    resolve_train_step,
)
from trinity.config.plan.stage_plan import ExperimentPlan, Role, StagePlan
from trinity.config.plan.start_checkpoint import configured_checkpoint
from trinity.config.plan.stored_rollouts import resolve_stored_rollouts
from trinity.config.plan.task_storage import absolute
from trinity.config.schema.algorithm import AlgorithmConfig, OptimizerConfig
from trinity.config.schema.buffer import BufferConfig
from trinity.config.schema.choices import (
    BY_TURNS,
    EXPLORING,
    WITHOUT_TASKS,
    LearningRateSchedule,
    Mode,
)
from trinity.config.schema.experiment import Config, MergedStage, check_stage_names, stages_of
from trinity.errors import UserError
from trinity.runtime.settings import stage_variables

ROLES: dict[Mode, tuple[Role, ...]] = {
    "both": ("trainer", "explorer"),
    "colocate": ("trainer", "explorer"),
    "train": ("trainer",),
    "explore": ("explorer",),
    "bench": ("trainer", "explorer"),
    "serve": ("explorer",),
}
"""In bench the trainer reads the checkpoints and gives out their weights.

A model served elsewhere has none, and so no trainer.
"""
SHORTEST = SequenceLengths(model=2, prompt=1, response=1, min_response=0)
"""Stands in for wrong lengths, so that tasksets can still be checked."""


class PlanErrors(UserError):
    """Errors of a plan, with stages that stand-ins make of the rest, so that it can be checked."""

    def __init__(self, text: str, stages: tuple[StagePlan, ...]) -> None:
        super().__init__(text)
        self.stages = stages


class _Model(NamedTuple):
    path: str
    critic_path: str | None
    teacher_path: str | None
    adapter_path: str | None
    chat_template: str | None


class _Data(NamedTuple):
    tasksets: tuple[ResolvedTaskset, ...]
    eval_tasksets: tuple[ResolvedTaskset, ...]
    experience_buffer: ResolvedExperienceBuffer
    auxiliary_buffers: tuple[ResolvedExperienceBuffer, ...]


def plan_stage(stage: MergedStage, rollout: RolloutGpus) -> StagePlan:
    """Returns a stage's plan; `rollout` has the GPUs that rollout takes in all stages.

    Raises: PlanErrors with a line for each error, except those that only follow from others.
    """
    takes_turns = stage.config.mode == BY_TURNS
    if takes_turns:
        stage = replace(stage, config=stage.config.model_copy(update={"mode": "both"}))
    with stage_variables(stage.config.explorer.env_vars):
        return _resolve_stage(stage, rollout, takes_turns=takes_turns)


def _resolve_stage(
    stage: MergedStage, rollout: RolloutGpus, *, takes_turns: bool = False
) -> StagePlan:
    config, name = stage.config, stage.name
    errors = ErrorCollector(f"stage `{name}`: ")
    rows = config.buffer.trainer_input.experience_buffer
    algorithm = errors.attempt(lambda: resolve_algorithm(config.algorithm, config.mode, rows))
    lengths = errors.attempt(lambda: resolve_lengths(config.model))
    model = errors.attempt(lambda: _model(config, algorithm))
    sizes = None
    if algorithm:
        sizes = errors.attempt(lambda: resolve_sizes(config, algorithm, lengths, name, rollout))
    of_data = ErrorCollector()
    data = _data(config, lengths or SHORTEST, algorithm, of_data)
    errors.attempt(of_data.raise_all)
    operators: tuple[ResolvedOperator, ...] | None = ()
    if config.mode in EXPLORING:
        given = config.data_processor.experience_pipeline.operators
        operators = errors.attempt(lambda: resolve_operators(given, config.service))
    auxiliary: tuple[AuxiliaryModel, ...] | None = ()
    if config.mode != "train":
        known = lengths or SHORTEST
        auxiliary = errors.attempt(lambda: resolve_auxiliary_models(config, known))
    external = errors.attempt(lambda: resolve_external_model(config))
    usual = algorithm or _usual_algorithm(config)
    plan = _plan(
        stage,
        with_only_buffer(usual, config) if sizes else usual,
        lengths or SHORTEST,
        model or _Model(config.model.model_path, None, None, None, None),
        sizes or _smallest_sizes(config),
        data,
        operators or (),
    )
    plan = plan.model_copy(
        update={
            "auxiliary_models": auxiliary or (),
            "external_model": external,
            "takes_turns": takes_turns,
        }
    )
    if sizes and not of_data.text:
        plan = plan.with_train_step(errors.attempt(lambda: resolve_train_step(plan)) or "rows")
    if algorithm and sizes and not of_data.text:
        errors.attempt(lambda: check_algorithm(plan))
        errors.attempt(lambda: check_capacity(plan.replay, plan.num_rollout_rows))
    if sizes:
        errors.attempt(lambda: check_placement(plan))
        errors.attempt(lambda: check_attention(plan))
    errors.attempt(lambda: check_turns(plan))
    errors.attempt(lambda: check_weight_update(plan))
    errors.attempt(lambda: check_serving(plan))
    if not of_data.text:
        errors.attempt(lambda: check_best_taskset(plan))
    errors.attempt(lambda: check_tool_calls(plan))
    errors.attempt(lambda: check_monitor_args(config.monitor))
    if errors.text:
        raise PlanErrors(errors.text, (plan,))
    return plan


def _usual_algorithm(config: Config) -> ResolvedAlgorithm:
    """Stands in for an algorithm that is wrong."""
    usual = "sft" if config.mode == "train" else "grpo"
    return resolve_algorithm(AlgorithmConfig(algorithm_type=usual), config.mode)


def _smallest_sizes(config: Config) -> BatchSizes:
    """Stands in for wrong sizes."""
    return BatchSizes(
        train_batch=1,
        expert_rows=0,
        explore_rows=int(config.mode in EXPLORING),
        ranks=1,
        max_token_len=SHORTEST.model,
    )


def _plan(
    stage: MergedStage,
    algorithm: ResolvedAlgorithm,
    lengths: SequenceLengths,
    model: _Model,
    sizes: BatchSizes,
    data: _Data,
    operators: tuple[ResolvedOperator, ...],
) -> StagePlan:
    config = stage.config
    steps = total_steps(
        config,
        rows_per_train_step=fresh_rows(
            data.experience_buffer.replay,
            sizes.train_batch - sizes.expert_rows,
            sizes.explore_rows,
        ),
        rows_per_explore_step=sizes.explore_rows,
    )
    return StagePlan(
        index=stage.index,
        name=stage.name,
        mode=config.mode,
        roles=("explorer",) if is_external(config) else ROLES[config.mode],
        config=config,
        algorithm=algorithm,
        operators=operators,
        model_path=model.path,
        critic_model_path=model.critic_path,
        teacher_model_path=model.teacher_path,
        adapter_path=model.adapter_path,
        chat_template=model.chat_template,
        max_model_len=lengths.model,
        max_prompt_tokens=lengths.prompt,
        max_response_tokens=lengths.response,
        min_response_tokens=lengths.min_response,
        train_batch_size=sizes.train_batch,
        num_expert_rows=sizes.expert_rows,
        rows_per_explore_step=sizes.explore_rows,
        total_explore_steps=steps.explore,
        total_train_steps=steps.train,
        trainer_rank_num=sizes.ranks,
        max_token_len_per_gpu=sizes.max_token_len,
        tasksets=data.tasksets,
        eval_tasksets=data.eval_tasksets,
        eval_interval=_eval_interval(config),
        experience_buffer=data.experience_buffer,
        auxiliary_buffers=data.auxiliary_buffers,
        lr_schedule=_lr_schedule(
            config.algorithm.optimizer,
            begins_after=config.trainer.critic_warmup if algorithm.needs_critic else 0,
        ),
        critic_lr_schedule=_lr_schedule(config.trainer.critic.optimizer),
    )


def _model(config: Config, algorithm: ResolvedAlgorithm | None) -> _Model:
    errors, model = ErrorCollector(), config.model
    resolve = locate_model if is_external(config) else resolve_model_path
    path = errors.attempt(lambda: resolve(model.model_path))
    adapter = errors.attempt(lambda: resolve_adapter_path(model))
    template = errors.attempt(lambda: chat_template_of(model))
    variables, thinks = model.chat_template_kwargs, model.enable_thinking
    errors.attempt(lambda: check_template_kwargs(variables, thinks, "model"))
    errors.raise_all()
    assert path is not None
    has_critic = algorithm is not None and algorithm.needs_critic
    critic = (locate_model(model.critic_model_path) or path) if has_critic else None
    teacher = locate_model(config.algorithm.distillation.model_path) or None
    return _Model(path, critic, teacher, adapter, template)


def _data(
    config: Config,
    lengths: SequenceLengths,
    algorithm: ResolvedAlgorithm | None,
    errors: ErrorCollector,
) -> _Data:
    """Returns the data that have no errors, with a usual buffer in the place of a wrong one."""
    repeat_times = algorithm.repeat_times if algorithm else 1
    tasksets = _tasksets(config, lengths, repeat_times, errors)
    schema = algorithm.row_schema if algorithm else "sft"
    buffer = errors.attempt(lambda: resolve_experience_buffer(config, config.mode, schema))
    auxiliary = errors.attempt(lambda: resolve_auxiliary_buffers(config))
    if buffer is None:
        empty = config.model_copy(update={"buffer": BufferConfig()})
        buffer = resolve_experience_buffer(empty, "both", "experience")
    return _Data(*tasksets, buffer, auxiliary or ())


def _tasksets(
    config: Config, lengths: SequenceLengths, repeat_times: int, errors: ErrorCollector
) -> tuple[tuple[ResolvedTaskset, ...], tuple[ResolvedTaskset, ...]]:
    if config.mode in WITHOUT_TASKS:
        return (), ()
    tasksets: tuple[ResolvedTaskset, ...] = ()
    if config.mode in EXPLORING:
        tasksets = resolve_train_tasksets(config, lengths, repeat_times, errors)
    eval_tasksets = resolve_eval_tasksets(config, lengths, errors)
    if errors.text:
        names = _written_names(config)
    else:
        eval_tasksets = with_free_names(tasksets, eval_tasksets)
        names = [taskset.name for taskset in (*tasksets, *eval_tasksets)]
    names += config.buffer.trainer_input.auxiliary_buffers
    errors.attempt(lambda: check_unique_names(names))
    return tasksets, eval_tasksets


def _written_names(config: Config) -> list[str]:
    """Returns names that a file gives its tasksets; an evaluation may have one to train on."""
    own = config.buffer.explorer_input
    names = [taskset.name for taskset in own.to_train_on if taskset.name]
    taken = set(names)
    held_out = [taskset.name for taskset in own.eval_tasksets if taskset.name]
    return [*names, *(f"{name}_eval" if name in taken else name for name in held_out)]


def _eval_interval(config: Config) -> int:
    """Rounds to versions, which evaluations are pinned to and which come per `sync_interval`."""
    interval, sync = config.explorer.eval_interval, config.synchronizer.sync_interval
    return max(interval // sync, 1) * sync


def _lr_schedule(optimizer: OptimizerConfig, begins_after: int = 0) -> LearningRateSchedule:
    return LearningRateSchedule(
        begins_after=begins_after,
        lr=optimizer.lr,
        kind=optimizer.lr_scheduler_type,
        warmup_steps=optimizer.lr_warmup_steps,
        warmup_ratio=optimizer.lr_warmup_steps_ratio,
        min_ratio=optimizer.min_lr_ratio,
        anneal_steps=optimizer.lr_wsd_decay_steps,
        anneal_style=optimizer.lr_wsd_decay_style,
        warmup_init=optimizer.lr_warmup_init,
    )


def plan_experiment(config: Config, *, now: datetime | None = None) -> ExperimentPlan:
    """Returns the plan; `now` names a run that must not continue an old one."""
    stages = _plan_stages(config)
    directory = usual_job_dir(config)
    uses_run = any(
        stage.mode == "serve" or (stage.mode == "bench" and stage.needs_training)
        for stage in stages
    )
    name = config.name
    is_used = directory.is_dir() and any(directory.iterdir())
    if starts_new_run(config) and not uses_run and is_used:
        name = f"{name}_{now or datetime.now():%Y%m%d%H%M%S}"
    return ExperimentPlan(
        tenant=config.tenant,
        label="/".join([*_folders(config), name]),
        seed=config.seed,
        job_dir=str(directory.with_name(name)),
        stages=stages,
    )


def _plan_stages(config: Config) -> tuple[StagePlan, ...]:
    """Plans all stages, with the checkpoint that the first one begins with.

    Raises: PlanErrors.
    """
    merged = stages_of(config)
    errors = ErrorCollector()
    errors.attempt(partial(check_stage_names, config))
    errors.attempt(partial(check_same_cluster, merged))
    errors.attempt(partial(check_addresses, config))
    rollout = largest_rollout(merged)
    planned: list[StagePlan] = []
    for stage in merged:
        start = errors.attempt(partial(configured_checkpoint, stage, config.trainer))
        try:
            plan = plan_stage(stage, rollout)
        except PlanErrors as error:
            errors.add(error)
            [plan] = error.stages
        planned.append(plan.model_copy(update={"start_checkpoint": start}))
    errors.attempt(partial(check_serve_is_single_stage, planned))
    stages = None if errors.text else errors.attempt(partial(resolve_stored_rollouts, planned))
    if stages is None:
        raise PlanErrors(errors.text, tuple(planned))
    return _on_one_gpu(stages)


def _on_one_gpu(stages: tuple[StagePlan, ...]) -> tuple[StagePlan, ...]:
    """Returns the stages, all by turns if one is: an engine starts while an earlier one trains."""
    if not any(stage.takes_turns for stage in stages):
        return stages
    sharing = (*EXPLORING, "train")
    return tuple(
        stage.model_copy(update={"takes_turns": stage.mode in sharing}) for stage in stages
    )


def usual_job_dir(config: Config) -> Path:
    """Returns the directory of a run; one that must not continue an old one gets another name."""
    return Path(absolute(config.checkpoint_root_dir)).joinpath(*_folders(config), config.name)


def _folders(config: Config) -> list[str]:
    return [part for part in (config.project, config.group) if part]


def starts_new_run(config: Config) -> bool:
    """True if a file never continues a run that is there."""
    return not config.continue_from_checkpoint or config.trainer.resume_mode == "disable"
