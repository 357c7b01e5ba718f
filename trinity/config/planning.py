"""Derives the plan of an experiment from its configuration."""

from datetime import datetime
from functools import partial
from pathlib import Path

from trinity.config.gathered import all_of
from trinity.config.merging import Stage, stages_of
from trinity.config.plan import ExperimentPlan, StagePlan
from trinity.config.ranks import Rollout, largest_rollout
from trinity.config.resolve_data import absolute
from trinity.config.root import Config
from trinity.config.serving_check import check_alone
from trinity.config.stage_planning import plan_stage
from trinity.config.stored_rollouts import with_stored_rollouts
from trinity.config.trainer import TrainerConfig
from trinity.errors import UserError


def plan_experiment(config: Config, *, now: datetime | None = None) -> ExperimentPlan:
    """Returns the plan; `now` names a run that must not continue an old one."""
    merged = stages_of(config)
    rollout = largest_rollout(merged)
    planned = all_of([partial(_planned, stage, config.trainer, rollout) for stage in merged])
    check_alone(planned)
    stages = with_stored_rollouts(planned)
    parts = [part for part in (config.project, config.group) if part]
    parent = Path(absolute(config.checkpoint_root_dir)).joinpath(*parts)
    name = config.name
    looks_back = any(
        stage.mode == "serve" or (stage.mode == "bench" and stage.needs_training)
        for stage in stages
    )
    if _begins_anew(config) and not looks_back and _is_used(parent / name):
        name = f"{name}_{now or datetime.now():%Y%m%d%H%M%S}"
    return ExperimentPlan(
        tenant=config.tenant,
        label="/".join([*parts, name]),
        seed=config.seed,
        job_dir=str(parent / name),
        stages=stages,
    )


def _planned(stage: Stage, above: TrainerConfig, rollout: Rollout) -> StagePlan:
    """Plans a stage, with the checkpoint that the first one begins with."""
    start = _start_of(stage, above)
    return plan_stage(stage, rollout).model_copy(update={"start_checkpoint": start})


def _start_of(stage: Stage, above: TrainerConfig) -> str | None:
    trainer = stage.config.trainer
    mode, path = trainer.resume_mode, trainer.resume_from_path
    if (mode, path) != (above.resume_mode, above.resume_from_path):
        raise UserError(
            f"stage `{stage.name}`: `trainer.resume_mode` and `resume_from_path` say where the run "
            "begins: write them at the top of the file, not in a stage"
        )
    if mode == "resume_path" and not path:
        raise UserError(
            "`trainer.resume_mode: resume_path` needs `trainer.resume_from_path`: "
            "give the folder of a checkpoint"
        )
    if mode != "resume_path" and path:
        raise UserError(
            f"`trainer.resume_from_path: {path}` is read with `trainer.resume_mode: resume_path` "
            "alone: write that too, or remove the path"
        )
    return absolute(path) if path and stage.index == 0 else None


def _begins_anew(config: Config) -> bool:
    return not config.continue_from_checkpoint or config.trainer.resume_mode == "disable"


def _is_used(directory: Path) -> bool:
    return directory.is_dir() and any(directory.iterdir())
