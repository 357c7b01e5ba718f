"""Finds the run of a command: the one named, the only running one, or the only one."""

import os
from pathlib import Path
from typing import Annotated

import typer

from trinity.cli.standing import last_summary
from trinity.config.loading.load import load_config
from trinity.config.planning import plan_experiment
from trinity.config.schema.experiment import Config
from trinity.errors import UserError
from trinity.launch.resume import PLAN_FILE, holds_run
from trinity.launch.serving import SUFFIX, is_serve, serve_plan
from trinity.local.home import home_of
from trinity.local.job_lock import LOCK_FILE, holder
from trinity.local.run_file import RunningStack, read_running
from trinity.progress.summary import FINISHED

RUN_FILE = "run.json"
RUN_DEPTHS = ("*/*", "*/*/*")
"""A run's directory is `<root>/<project>/<name>` or `<root>/<project>/<group>/<name>`."""
ROOT_VARIABLE = "TRINITY_CHECKPOINT_ROOT_DIR"
DEFAULT_ROOT = "checkpoints"
NAMED = 5
"""Most runs that a message lists."""

ConfigOption = Annotated[
    Path | None, typer.Option("--config", "-c", help="The run's YAML file.", show_default=False)
]
JobDirOption = Annotated[
    Path | None, typer.Option("--job-dir", help="The run's directory.", show_default=False)
]


def find_run(config: Path | None, job_dir: Path | None) -> tuple[Path, RunningStack]:
    """Returns the directory of the run, and its running stack.

    Raises: UserError if nothing runs there.
    """
    directory = _job_dir(config, job_dir)
    running = _running(directory)
    if running is None:
        raise UserError(f"no run is going on in {directory}{_why_not(directory)}")
    return directory, running


def running_in(directory: Path) -> RunningStack | None:
    """Returns the stack that runs there; None if the run has stopped.

    Raises: UserError if no run was started, or if one is being started or stopped.
    """
    running = _running(directory)
    if running is None and (holder(directory) is not None or not holds_run(directory)):
        raise UserError(f"no run is going on in {directory}{_why_not(directory)}")
    return running


def find_job(config: Path | None, job_dir: Path | None) -> Path:
    """Returns the directory of the run, running or stopped."""
    return _job_dir(config, job_dir)


def _why_not(directory: Path) -> str:
    """Explains why no run is going on, as the end of a sentence."""
    if (process := holder(directory)) is not None:
        return f" yet, or any more: process {process} starts or stops one; ask again in a moment"
    if not holds_run(directory):
        return ": none was started there; give its --config or its --job-dir"
    summary = last_summary(directory)
    if summary is None:
        return ": it has stopped; `trinity run` goes on with it"
    if summary.state == FINISHED:
        return ": it is finished; `trinity run` shows its results again"
    return f": it has failed ({summary.reason}); `trinity run` goes on with it"


def _job_dir(config: Path | None, job_dir: Path | None) -> Path:
    if job_dir is not None:
        if job_dir.is_file():
            raise UserError(f"{job_dir} is a file: give the run's directory as `--job-dir`")
        return job_dir
    if config is not None:
        return _run_of(load_config(config))
    return _only_run(Path(os.environ.get(ROOT_VARIABLE, DEFAULT_ROOT)))


def _run_of(config: Config) -> Path:
    """The directory of a configuration's run, or of one made from it, such as a trial."""
    plan = plan_experiment(config)
    if is_serve(plan):
        return serve_plan(plan).job_path
    own = plan.job_path
    derived = [path.parent for path in own.parent.glob(f"{config.name}-*/{RUN_FILE}")]
    found = [path for path in (own, *sorted(derived)) if _running(path) is not None]
    if len(found) > 1:  # a file that trains means the run, not the one that serves it
        found = [path for path in found if path.name != f"{own.name}{SUFFIX}"]
    return _single(found) if found else own


def _only_run(root: Path) -> Path:
    """The directory of the only running run below `root`, or else of the only run."""
    if found := [path for path in _having(root, RUN_FILE) if _running(path) is not None]:
        return _single(found)
    if found := [path for path in _having(root, LOCK_FILE) if holder(path) is not None]:
        return found[0]  # being started or stopped; the caller reports that
    stopped = sorted(_having(root, PLAN_FILE), key=_began, reverse=True)
    if not stopped:
        raise UserError(f"no run was started below {root}: give its --config or its --job-dir")
    if len(stopped) > 1:
        named = ", ".join(str(path) for path in stopped[:NAMED])
        more = f" and {len(stopped) - NAMED} more" if len(stopped) > NAMED else ""
        raise UserError(
            f"no run is going on below {root}: give the --job-dir of one that has stopped, the "
            f"newest first: {named}{more}"
        )
    return stopped[0]


def _having(root: Path, name: str) -> list[Path]:
    """Directories of runs that hold a file of this name."""
    return sorted(path.parent for depth in RUN_DEPTHS for path in root.glob(f"{depth}/{name}"))


def _began(job_dir: Path) -> float:
    return (job_dir / PLAN_FILE).stat().st_mtime


def _single(found: list[Path]) -> Path:
    if len(found) > 1:
        listed = ", ".join(str(path) for path in found)
        raise UserError(f"several runs are going on ({listed}): give one's --job-dir")
    return found[0]


def _running(directory: Path) -> RunningStack | None:
    """The stack that runs there; None also for a stale file of a killed launcher."""
    try:
        return read_running(home_of(directory))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"cannot read {directory / RUN_FILE}: {error}") from error
