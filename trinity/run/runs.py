"""Finds a run by its configuration or directory, and describes a finished or stopped one."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from pydantic import BaseModel, ValidationError

from trinity.config.loading.load import load_config
from trinity.config.planning import starts_new_run, usual_job_dir
from trinity.config.schema.experiment import Config, stages_of
from trinity.errors import UserError
from trinity.run.launch.modes import SUFFIX
from trinity.run.launch.resume import PLAN_FILE, has_run
from trinity.run.local.addresses import stack_directory_of
from trinity.run.local.reaper import LOCK_FILE, lock_owner_pid, viewer_pid
from trinity.run.local.run_file import RunningStack, read_running
from trinity.run.places import Deployment, RunLocation
from trinity.run.progress.summary import FINISHED, RunSummary, read_summary
from trinity.run.progress.view import Evaluation, failed_runs_text, shown_order
from trinity.run.state import ExperimentReport, StageReport
from trinity.weights.stored import model_lines

_CHECKPOINT = re.compile(r"step-(\d+)-\d+")
RUN_FILE = "run.json"
RUN_DEPTHS = ("*/*", "*/*/*")
"""A run's directory is `<root>/<project>/<name>` or `<root>/<project>/<group>/<name>`."""
ROOT_VARIABLE = "TRINITY_CHECKPOINT_ROOT_DIR"
DEFAULT_ROOT = "checkpoints"
MAX_NAMED_RUNS = 5
"""Most runs that a message lists."""
ConfigOption = Annotated[
    Path | None, typer.Option("--config", "-c", help="The run's YAML file.", show_default=False)
]
RunArgument = Annotated[
    Path | None,
    typer.Argument(
        metavar="[RUN]",
        help="The run's YAML file or its directory; the same as --config or --job-dir.",
        show_default=False,
    ),
]
JobDirOption = Annotated[
    Path | None, typer.Option("--job-dir", help="The run's directory.", show_default=False)
]
SynchronizerOption = Annotated[
    str,
    typer.Option(
        "--synchronizer",
        help="The synchronizer's address, host:port. TRINITY_SECURITY_DIR has the certificates and "
        "the token for both.",
    ),
]
OneJsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON object (docs/schemas).")
]


def result_lines(summary: RunSummary) -> Iterator[str]:
    """Yields the first, best and final evaluation of each taskset, and the amount of training."""
    headline = summary.first_evaluation, summary.best_evaluation, summary.final_evaluation
    others = [(of.first, of.best, of.final) for of in summary.tasksets[1:]]
    for evaluations in (headline, *others):
        for title, done in zip(("first", "best", "final"), evaluations, strict=True):
            if done is not None:
                yield f"{title:6} evaluation  {_evaluation(done)}"
    yield (
        f"{summary.steps} train steps on {summary.experiences:,} experiences "
        f"({summary.tokens:,} tokens) in {summary.seconds['total']:.0f} s"
    )


def _evaluation(done: Evaluation) -> str:
    failed = failed_runs_text(done)
    figures = "  ".join(
        f"{name} {value} (n={value.n}{failed})"
        for name, value in ((name, done.metrics[name]) for name in shown_order(done.metrics))
    )
    return f"{done.stage} version {done.version} on {done.taskset}: {figures}"


class StageOutline(BaseModel):
    """The parts of a stage's plan that are shown."""

    name: str
    total_train_steps: int | None = None
    model_path: str | None = None


class PlanOutline(BaseModel):
    """The parts of a plan that are shown."""

    label: str
    stages: tuple[StageOutline, ...]


def last_summary(job_dir: Path) -> RunSummary | None:
    """The summary of the last start; None if that was stopped: each start removes the former one.

    Times of files are ignored, as they differ in a copied run.
    """
    return read_summary(job_dir) if has_run(job_dir) else None


def stopped_experiment(job_dir: Path) -> tuple[ExperimentReport, RunSummary | None]:
    """Returns the state of a run that has stopped, and the summary of its end, if it had one.

    Raises: UserError if its plan cannot be read.
    """
    plan, summary = read_outline(job_dir), last_summary(job_dir)
    state, reason = (summary.state, summary.reason) if summary else ("stopped", "")
    states = _stage_states(summary) if summary else {}
    stages = tuple(
        StageReport(
            name=stage.name,
            state=states.get(stage.name, "pending" if summary else "stopped"),
            newest_checkpoint=newest_checkpoint_step(job_dir, stage.name),
            total_train_steps=stage.total_train_steps,
        )
        for stage in plan.stages
    )
    return ExperimentReport(label=plan.label, state=state, reason=reason, stages=stages), summary


def _stage_states(summary: RunSummary) -> dict[str, str]:
    """Returns the states of the stages that were opened: all but the last one had ended."""
    opened = [stage.name for stage in summary.stages if stage.steps or stage.seconds]
    return dict.fromkeys(opened[:-1], FINISHED) | dict.fromkeys(opened[-1:], summary.state)


def stopped_run_lines(job_dir: Path) -> Iterator[str]:
    """Yields the lines of `trinity status` for a run that was started and has stopped.

    Raises: UserError if its plan cannot be read.
    """
    found, summary = stopped_experiment(job_dir)
    if summary is None:
        yield f"{found.label}  stopped: `trinity run` goes on with it"
    elif summary.state == FINISHED:
        yield f"{found.label}  finished"
    else:
        yield f"{found.label}  failed: {summary.reason}; `trinity run` goes on with it"
    for stage in found.stages:
        yield f"  {stage.name}  {_checkpoint(stage)}"
    if summary is not None:
        for stage_summary in summary.stages:
            for change in stage_summary.changes:
                yield f"  {stage_summary.name}  changed {change}"
        yield from result_lines(summary)
    yield from model_lines(job_dir, [stage.name for stage in found.stages])
    yield f"in {job_dir}; `trinity view` shows what it explored, `trinity log` what was logged"


def read_outline(job_dir: Path) -> PlanOutline:
    """Returns the outline of the plan that a run was started with.

    Raises: UserError if it cannot be read.
    """
    path = job_dir / PLAN_FILE
    try:
        return PlanOutline.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise UserError(f"cannot read {path}, which says what was started: {error}") from error


def _checkpoint(stage: StageReport) -> str:
    if stage.newest_checkpoint is None:
        return "no checkpoint yet"
    of = f" of {stage.total_train_steps}" if stage.total_train_steps else ""
    return f"newest checkpoint: step {stage.newest_checkpoint}{of}"


def newest_checkpoint_step(job_dir: Path, stage: str) -> int | None:
    """Returns the step of the newest checkpoint of a stage; None without a checkpoint."""
    folders = (job_dir / "stages" / stage / "checkpoints").glob("step-*")
    steps = [int(found[1]) for path in folders if (found := _CHECKPOINT.fullmatch(path.name))]
    return max(steps, default=None)


def place_of(
    word: Path | None, config: Path | None, job_dir: Path | None
) -> tuple[Path | None, Path | None]:
    """Returns the configuration and the directory that a command names, the word among them.

    Raises: UserError if the word names another one than an option does.
    """
    if word is None:
        return config, job_dir
    if config is not None or job_dir is not None:
        raise UserError(f"{word} and {config or job_dir} both name a run: leave one out")
    return (None, word) if word.is_dir() else (word, None)


def active_stack(directory: Path) -> RunningStack:
    """Returns the stack that runs there.

    Raises: UserError if no run is active there.
    """
    running = _running(directory)
    if running is None:
        raise UserError(f"no run is going on in {directory}{_why_not(directory)}")
    return running


def services_of(place: RunLocation) -> Deployment | None:
    """Returns the services of a run; None if it has stopped.

    Raises: UserError if no run was started there, or if one is being started or stopped.
    """
    if isinstance(place, Deployment):
        return place
    if (running := running_stack(place)) is None:
        return None
    at = running.addresses
    return Deployment(synchronizer=at.synchronizer, buffer=at.buffer, security=at.security)


def running_stack(directory: Path) -> RunningStack | None:
    """Returns the stack that runs there; None if the run has stopped.

    Raises: UserError if no run was started, or if one is being started or stopped.
    """
    running = _running(directory)
    if running is None and (launcher_pid(directory) is not None or not has_run(directory)):
        raise UserError(f"no run is going on in {directory}{_why_not(directory)}")
    return running


def _why_not(directory: Path) -> str:
    """Explains why no run is going on, as the end of a sentence."""
    if (process := launcher_pid(directory)) is not None:
        return f" yet, or any more: process {process} starts or stops one; ask again in a moment"
    if not has_run(directory):
        return ": none was started there; give its --config or its --job-dir"
    summary = last_summary(directory)
    if summary is None:
        return ": it has stopped; `trinity run` goes on with it"
    if summary.state == FINISHED:
        return ": it is finished; `trinity run` shows its results again"
    return f": it has failed ({summary.reason}); `trinity run` goes on with it"


def find_job_dir(config: Path | None, job_dir: Path | None) -> Path:
    """Returns the directory of the run, running or stopped."""
    if config is not None and job_dir is not None:
        raise UserError(f"--config {config} and --job-dir {job_dir} both name a run: leave one out")
    if job_dir is not None:
        if job_dir.is_file():
            raise UserError(f"{job_dir} is a file: give the run's directory as `--job-dir`")
        return job_dir
    if config is not None:
        return run_of(load_config(config))
    return _default_run(default_root())


def default_root() -> Path:
    """Returns the default directory of runs."""
    return Path(os.environ.get(ROOT_VARIABLE, DEFAULT_ROOT))


def run_of(config: Config) -> Path:
    """The directory of a configuration's run, or of one made from it, such as a trial.

    Its stages are not planned: the run has started, and the plug-ins that a file names are not
    needed to find it.
    """
    own = usual_job_dir(config)
    if any(stage.config.mode == "serve" for stage in stages_of(config)):
        return own.with_name(f"{own.name}{SUFFIX}")
    renewed = [path for path in own.parent.glob(f"{own.name}_*") if _is_renewed(own, path)]
    derived = [path.parent for path in own.parent.glob(f"{own.name}-*/{RUN_FILE}")]
    found = [
        path for path in (own, *sorted(renewed), *sorted(derived)) if _running(path) is not None
    ]
    if len(found) > 1:  # a file that trains means the run, not the one that serves it
        found = [path for path in found if path.name != f"{own.name}{SUFFIX}"]
    if not found and starts_new_run(config) and has_run(own):
        return max((own, *renewed), key=_began)
    return _single(found) if found else own


def _is_renewed(own: Path, directory: Path) -> bool:
    """True for the directory of a later start of a run that never continues an earlier one."""
    return re.fullmatch(r"_\d{14}", directory.name[len(own.name) :]) is not None and has_run(
        directory
    )


def _default_run(root: Path) -> Path:
    """The directory of the only running run below `root`, or else of the only run that trained."""
    if found := [path for path in run_directories(root, RUN_FILE) if _running(path) is not None]:
        return _single(found)
    if found := [
        path for path in run_directories(root, LOCK_FILE) if launcher_pid(path) is not None
    ]:
        return found[0]  # being started or stopped; the caller reports that
    stopped = sorted(run_directories(root, PLAN_FILE), key=_began, reverse=True)
    stopped = [path for path in stopped if not path.name.endswith(SUFFIX)] or stopped
    if not stopped:
        raise UserError(f"no run was started below {root}: give its --config or its --job-dir")
    if len(stopped) > 1:
        raise _several_stopped(root, stopped)
    return stopped[0]


def _several_stopped(root: Path, stopped: list[Path]) -> UserError:
    named = ", ".join(str(path) for path in stopped[:MAX_NAMED_RUNS])
    more = f" and {len(stopped) - MAX_NAMED_RUNS} more" if len(stopped) > MAX_NAMED_RUNS else ""
    return UserError(
        f"no run is going on below {root}: give the --job-dir of one that has stopped, the "
        f"newest first: {named}{more}"
    )


def run_directories(root: Path, name: str) -> list[Path]:
    """Directories of runs that hold a file of this name."""
    return sorted(path.parent for depth in RUN_DEPTHS for path in root.glob(f"{depth}/{name}"))


def _began(job_dir: Path) -> float:
    return (job_dir / PLAN_FILE).stat().st_mtime


def _single(found: list[Path]) -> Path:
    if len(found) > 1:
        listed = ", ".join(str(path) for path in found)
        raise UserError(f"several runs are going on ({listed}): give one's --job-dir")
    return found[0]


def launcher_pid(directory: Path) -> int | None:
    """The process that starts, runs or stops a run there, not one that only views it."""
    return None if viewer_pid(directory) is not None else lock_owner_pid(directory)


def _running(directory: Path) -> RunningStack | None:
    """The stack that runs there; None also for a viewed run and a killed launcher's stale file."""
    try:
        if viewer_pid(stack_directory_of(directory)) is not None:
            return None
        return read_running(stack_directory_of(directory))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"cannot read {directory / RUN_FILE}: {error}") from error
