"""Prepares a run: loads and checks its plan, its names and its files on the hub."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pydantic import JsonValue

from trinity.config.changes.plans import ChangedRun
from trinity.config.check import locate_errors, plan_config, raise_errors
from trinity.config.checks.advice import advise
from trinity.config.checks.runtime import check_inputs
from trinity.config.error_collector import ErrorCollector
from trinity.config.loading.load import ParsedConfig, read_config, require_runnable
from trinity.config.loading.migrate import ConfigNotice
from trinity.config.plan.model import HubReference, missing_from_cache
from trinity.config.plan.stage_plan import ExperimentPlan
from trinity.config.planning import PlanErrors
from trinity.config.schema.experiment import Config
from trinity.errors import UserError
from trinity.plugins import load_plugins, plugin_dirs_from_environment
from trinity.rft.checks.names import check_part_names, workflow_notices
from trinity.rft.checks.parts import check_parts
from trinity.run.launch.machine import take_turns
from trinity.run.launch.modes import (
    bench_plan,
    is_bench,
    is_bench_of_model,
    is_serve,
    model_bench_plan,
    serve_plan,
)
from trinity.run.launch.resume import check_resumable, has_run, keep_threads
from trinity.run.launch.stored_runs import SourceRuns

ANSWER_SECONDS = 15.0


def check_names(plan: ExperimentPlan) -> None:
    """Loads the plugins and looks up every name.

    Raises: UserError with a line for each part that cannot be used: the stage, the taskset, and
    names close to an unknown one.
    """
    load_plugins(plugin_dirs_from_environment())
    check_parts(plan.stages)


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
    changed: ChangedRun | None = None
    """The differences from the run that it goes on with."""


def prepare_run(
    path: Path,
    max_steps: int | None,
    overrides: Mapping[str, JsonValue] | None = None,
    *,
    accepts_changes: bool = False,
    accept_command: str = "",
) -> PreparedRun:
    """Loads, plans and checks a configuration.

    `max_steps` caps the train steps of every stage; the trial gets its own name so that it never
    mixes with the real run. `accept_command` is named where changes must be accepted. Raises:
    UserError.
    """
    reading = _read(path, overrides)
    config = require_runnable(reading)
    notes: list[str] = []
    if max_steps is not None:
        config = _trial_of(config, max_steps, notes)
    plan = _plan_of(config, reading)
    if plan.job_path.name != config.name:
        is_asked = not config.continue_from_checkpoint
        why = "continue_from_checkpoint is false" if is_asked else "trainer.resume_mode is disable"
        notes.append(f"{why}: starting over as {plan.label}")
    if is_bench_of_model(plan):
        notes.append(f"{plan.job_dir} holds no run: the model is evaluated as it is")
        plan = model_bench_plan(plan)
    plan = keep_threads(plan) if has_run(plan.job_path) else take_turns(plan)
    if max_steps is not None:
        plan = capped(plan, max_steps)
    benched = plan if is_bench(plan) else None
    if benched is not None:
        plan = bench_plan(benched)
    serves = is_serve(plan)  # serving computes no results that depend on the settings
    if serves:
        plan = serve_plan(plan)
    check_changes = partial(
        check_resumable, plan, accepts_changes=accepts_changes, accept_command=accept_command
    )
    changed = _check_plan(plan, reading, lambda: None if serves else check_changes())
    notes += changed.notes() if changed else ()
    return PreparedRun(
        plan=plan,
        resumes=not serves and has_run(plan.job_path),
        notes=(*notes, *advise(plan), *workflow_notices(plan.stages)),
        notices=reading.notices,
        benched=benched,
        sources=SourceRuns.from_plan(plan),
        changed=changed,
    )


def _trial_of(config: Config, max_steps: int, notes: list[str]) -> Config:
    """Returns the configuration of a short trial under another name.

    Resumed as the real run, it would have another learning-rate schedule and finished stages.
    """
    name = f"{config.name}-max-steps-{max_steps}"
    notes.append(f"a trial of at most {max_steps} train steps a stage, kept as {name}")
    return config.model_copy(update={"name": name})


def _read(path: Path, overrides: Mapping[str, JsonValue] | None) -> ParsedConfig:
    reading = read_config(path, overrides)
    try:
        raise_errors(reading)
    except PlanErrors as error:
        raise _with_names(error, reading) from error
    return reading


def _plan_of(config: Config, reading: ParsedConfig) -> ExperimentPlan:
    """Returns the plan of a file, perhaps under another name.

    Raises: UserError with a line for each error, those of unknown parts included.
    """
    try:
        return plan_config(config, reading.source)
    except PlanErrors as error:
        raise _with_names(error, reading) from error


def _with_names(error: PlanErrors, reading: ParsedConfig) -> UserError:
    """Adds unknown names, which the plan's other errors would hide."""
    errors = ErrorCollector()
    errors.add(error)
    try:
        check_part_names(error.stages)
    except UserError as unknown:
        located = locate_errors(str(unknown), error.stages, reading)
        errors.add(UserError("\n".join(located)))
    return UserError(errors.text)


def _check_plan(
    plan: ExperimentPlan, reading: ParsedConfig, check_changes: Callable[[], ChangedRun | None]
) -> ChangedRun | None:
    """Checks everything, and returns what differs from the run that is gone on with."""
    errors = ErrorCollector()
    for check in (check_inputs, check_names):
        try:
            check(plan)
        except UserError as error:
            errors.add(UserError("\n".join(locate_errors(str(error), plan.stages, reading))))
    changed = errors.attempt(check_changes)
    errors.raise_all()
    return changed


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
