"""Prepares a run: loads and checks its plan, its names and its files on the hub."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pydantic import JsonValue

from trinity.config.check import plan_config, raise_errors
from trinity.config.checks.advice import advise
from trinity.config.checks.runtime import check_inputs
from trinity.config.error_collector import ErrorCollector
from trinity.config.loading.load import ParsedConfig, read_config, require_runnable
from trinity.config.loading.migrate import ConfigNotice
from trinity.config.plan.model import HubReference, missing_from_cache
from trinity.config.plan.parts import ResolvedTaskset
from trinity.config.plan.stage_plan import ExperimentPlan, StagePlan
from trinity.errors import UserError
from trinity.launch.modes import bench_plan, is_bench, is_serve, serve_plan
from trinity.launch.part_checks import check_rewards_of_rows, check_tasksets
from trinity.launch.resume import as_started, check_resumable, has_run, kept_defaults
from trinity.launch.stored_runs import SourceRuns
from trinity.launch.workflow_checks import check_workflow, has_no_reward
from trinity.plugins import REWARDS, WORKFLOWS, load_plugins, plugin_dirs_from_environment
from trinity.rewards.reward import check_reward
from trinity.workflows.math_rm_workflow import MathRMWorkflow
from trinity.workflows.simple_workflow import SimpleWorkflow

ANSWER_SECONDS = 15.0


def check_names(plan: ExperimentPlan) -> None:
    """Loads the plugins and looks up every name.

    Raises: UserError with a line for each part that cannot be used: the stage, the taskset, and
    names close to an unknown one.
    """
    load_plugins(plugin_dirs_from_environment())
    check_parts(plan.stages)


def check_parts(stages: Sequence[StagePlan]) -> None:
    """Checks the names of some stages after the plugins are loaded."""
    check_tasksets(stages, (_check_workflow, _check_reward, _check_row_rewards))


def _check_workflow(taskset: ResolvedTaskset) -> None:
    workflow = WORKFLOWS.get(taskset.workflow)
    check_workflow(workflow, taskset.workflow)
    needs_reward = workflow in (SimpleWorkflow, MathRMWorkflow) or has_no_reward(workflow)
    if needs_reward and taskset.reward is None and not taskset.format.reward_fn_key:
        raise UserError(
            f"{taskset.workflow} has no reward of its own: set `default_reward_fn_type`"
        )


def _check_reward(taskset: ResolvedTaskset) -> None:
    if taskset.reward is not None:
        check_reward(REWARDS.get(taskset.reward), taskset.reward_args, taskset.reward)


def _check_row_rewards(taskset: ResolvedTaskset) -> None:
    def check(name: str) -> None:
        check_reward(REWARDS.get(name), taskset.reward_args, name)

    check_rewards_of_rows(taskset, check)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedRun:
    """A plan whose inputs were checked."""

    plan: ExperimentPlan
    resumes: bool
    notes: tuple[str, ...]
    notices: tuple[ConfigNotice, ...]
    """Warnings about keys that do not act as they are written."""
    benched: ExperimentPlan | None = None
    """The run whose checkpoints are evaluated, in mode bench."""
    sources: SourceRuns | None = None
    """The runs whose experiences are trained on, if any."""


def prepare_run(
    path: Path, max_steps: int | None, overrides: Mapping[str, JsonValue] | None = None
) -> PreparedRun:
    """Loads, plans and checks a configuration.

    `max_steps` caps the train steps of every stage; the trial gets its own name so that it never
    mixes with the real run. Raises: UserError.
    """
    reading = _read(path, overrides)
    config = require_runnable(reading)
    notes: list[str] = []
    if max_steps is not None:
        name = f"{config.name}-max-steps-{max_steps}"
        notes.append(f"a trial of at most {max_steps} train steps a stage, kept as {name}")
        config = config.model_copy(update={"name": name})
    plan = plan_config(config, reading.source)
    if kept := kept_defaults(plan):
        reading = _read(path, {**(overrides or {}), **kept})
        config = require_runnable(reading).model_copy(update={"name": config.name})
        plan = plan_config(config, reading.source)
        said = ", ".join(f"`{key}: {value}`" for key, value in kept.items())
        notes.append(f"{said} as it was when the run began, though the default is another one now")
    if plan.job_path.name != config.name:
        why = "trainer.resume_mode is disable"
        if not config.continue_from_checkpoint:
            why = "continue_from_checkpoint is false"
        notes.append(f"{why}: starting over as {plan.label}")
    plan = as_started(plan)
    if max_steps is not None:
        plan = capped(plan, max_steps)
    benched = plan if is_bench(plan) else None
    if benched is not None:
        plan = bench_plan(benched)
    serves = is_serve(plan)
    if serves:
        plan = serve_plan(plan)
    _check_plan(plan, serves=serves)
    return PreparedRun(
        plan=plan,
        resumes=not serves and has_run(plan.job_path),
        notes=(*notes, *advise(plan)),
        notices=reading.notices,
        benched=benched,
        sources=SourceRuns.from_plan(plan),
    )


def _read(path: Path, overrides: Mapping[str, JsonValue] | None) -> ParsedConfig:
    reading = read_config(path, overrides)
    raise_errors(reading)
    return reading


def _check_plan(plan: ExperimentPlan, *, serves: bool) -> None:
    errors = ErrorCollector()
    errors.attempt(partial(check_inputs, plan))
    errors.attempt(partial(check_names, plan))
    if not serves:  # nothing is computed that other settings would change
        errors.attempt(partial(check_resumable, plan))
    errors.raise_all()


def capped(plan: ExperimentPlan, max_steps: int) -> ExperimentPlan:
    """Returns the plan with no stage longer than `max_steps` train steps."""
    stages = tuple(
        stage.model_copy(
            update={"total_train_steps": min(stage.total_train_steps or max_steps, max_steps)}
        )
        for stage in plan.stages
    )
    return plan.model_copy(update={"stages": stages})


def check_hub(plan: ExperimentPlan, *, must_answer: bool) -> None:
    """Asks the hub for each model and dataset that is neither a directory nor in its cache.

    Raises: UserError with a line for each that is not there. If the hub must answer and does not,
    also one for each model: the buffer may already have stored the rows of a dataset.
    """
    errors = ErrorCollector()
    for hub_name in missing_from_cache(plan):
        errors.attempt(partial(_check, hub_name, must_answer and hub_name.kind == "model"))
    errors.raise_all()


def _check(hub_name: HubReference, must_answer: bool) -> None:
    try:
        _ask(hub_name)
    except (OSError, ImportError) as error:  # includes HTTP errors
        if must_answer:
            reason = str(error).partition("\n")[0] or type(error).__name__
            raise UserError(
                f"{hub_name.place} is neither a directory nor in the hub's cache, and the hub "
                f"does not answer ({reason}): fetch it first, or give a directory"
            ) from error


def _ask(hub_name: HubReference) -> None:
    # Imported here: needed only if something has to be fetched.
    from httpx import HTTPError
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError

    api = HfApi()
    info = api.model_info if hub_name.kind == "model" else api.dataset_info
    try:
        info(hub_name.name, timeout=ANSWER_SECONDS)
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise UserError(
            f"{hub_name.place} is not here and no public {hub_name.kind} on the hub: correct it, "
            "or set HF_TOKEN for a private one"
        ) from error
    except HTTPError as error:
        raise OSError(str(error)) from error
