"""Turns a YAML file into a checked plan, before anything is started."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pydantic import JsonValue

from trinity.config.check import plan_of, refuse_mistakes
from trinity.config.checks.advice import advice
from trinity.config.checks.runtime import check_inputs
from trinity.config.error_collector import Gathered
from trinity.config.loading.load import read_config, runnable
from trinity.config.loading.migrate import Notice
from trinity.config.plan.stage_plan import ExperimentPlan
from trinity.launch.benching import bench_plan, is_bench
from trinity.launch.names import check_names
from trinity.launch.resume import check_resumable, holds_run
from trinity.launch.serving import is_serve, serve_plan
from trinity.launch.source_runs import SourceRuns


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A plan whose inputs were checked."""

    plan: ExperimentPlan
    resumes: bool
    notes: tuple[str, ...]
    notices: tuple[Notice, ...]
    """Warnings about keys that do not act as they are written."""
    benched: ExperimentPlan | None = None
    """The run whose checkpoints are evaluated, in mode bench."""
    sources: SourceRuns | None = None
    """The runs whose experiences are trained on, if any."""


def prepare(
    path: Path, max_steps: int | None, overrides: Mapping[str, JsonValue] | None = None
) -> Prepared:
    """Loads, plans and checks a configuration.

    `max_steps` caps the train steps of every stage; the trial gets its own name so that it never
    mixes with the real run. Raises: UserError.
    """
    reading = read_config(path, overrides)
    refuse_mistakes(reading)
    config = runnable(reading)
    name = config.name
    notes: tuple[str, ...] = ()
    if max_steps is not None:
        name = f"{config.name}-max-steps-{max_steps}"
        notes = (f"a trial of at most {max_steps} train steps a stage, kept as {name}",)
        config = config.model_copy(update={"name": name})
    plan = plan_of(config, reading.source)
    if plan.job_path.name != name:
        why = "trainer.resume_mode is disable"
        if not config.continue_from_checkpoint:
            why = "continue_from_checkpoint is false"
        notes = (*notes, f"{why}: starting over as {plan.label}")
    if max_steps is not None:
        plan = capped(plan, max_steps)
    source = plan if is_bench(plan) else None
    if source is not None:
        plan = bench_plan(source)
    serves = is_serve(plan)
    if serves:
        plan = serve_plan(plan)
    gathered = Gathered()
    gathered.of(partial(check_inputs, plan))
    gathered.of(partial(check_names, plan))
    if not serves:  # nothing is computed that other settings would change
        gathered.of(partial(check_resumable, plan))
    gathered.raise_all()
    notes = (*notes, *advice(plan))
    return Prepared(
        plan=plan,
        resumes=not serves and holds_run(plan.job_path),
        notes=notes,
        notices=reading.notices,
        benched=source,
        sources=SourceRuns.of(plan),
    )


def capped(plan: ExperimentPlan, max_steps: int) -> ExperimentPlan:
    """Returns the plan with no stage longer than `max_steps` train steps."""
    stages = tuple(
        stage.model_copy(
            update={"total_train_steps": min(stage.total_train_steps or max_steps, max_steps)}
        )
        for stage in plan.stages
    )
    return plan.model_copy(update={"stages": stages})
