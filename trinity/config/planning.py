"""From a configuration to the plan of an experiment."""

from datetime import datetime
from functools import partial
from pathlib import Path

from trinity.config.gathered import all_of
from trinity.config.merging import stages_of
from trinity.config.plan import ExperimentPlan
from trinity.config.resolve_data import absolute
from trinity.config.root import Config
from trinity.config.stage_planning import plan_stage
from trinity.config.stored_rollouts import with_stored_rollouts


def plan_experiment(config: Config, *, now: datetime | None = None) -> ExperimentPlan:
    """All that follows from `config`; `now` names a run that must not continue an old one."""
    stages = all_of([partial(plan_stage, stage) for stage in stages_of(config)])
    stages = with_stored_rollouts(stages)
    parts = [part for part in (config.project, config.group) if part]
    parent = Path(absolute(config.checkpoint_root_dir)).joinpath(*parts)
    name = config.name
    benches = any(stage.mode == "bench" for stage in stages)
    if not config.continue_from_checkpoint and not benches and _is_used(parent / name):
        name = f"{name}_{now or datetime.now():%Y%m%d%H%M%S}"
    return ExperimentPlan(
        tenant=config.tenant,
        label="/".join([*parts, name]),
        seed=config.seed,
        job_dir=str(parent / name),
        stages=stages,
    )


def _is_used(directory: Path) -> bool:
    return directory.is_dir() and any(directory.iterdir())
