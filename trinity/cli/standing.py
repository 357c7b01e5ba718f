"""State of a stopped run, read from its directory without a database."""

import re
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel, ValidationError

from trinity.cli.results import result_lines
from trinity.errors import UserError
from trinity.launch.resume import PLAN_FILE
from trinity.progress.summary import FINISHED, SUMMARY_FILE, RunSummary, read_summary

_CHECKPOINT = re.compile(r"step-(\d+)-\d+")


class _Stage(BaseModel):
    name: str
    total_train_steps: int | None = None


class _Plan(BaseModel):
    """The parts of a plan that are shown, for plans written by any version."""

    label: str
    stages: tuple[_Stage, ...]


def last_summary(job_dir: Path) -> RunSummary | None:
    """The summary of the last start; None if that was stopped, whatever earlier ones ended with."""
    try:
        began = (job_dir / PLAN_FILE).stat().st_mtime_ns
        if (job_dir / SUMMARY_FILE).stat().st_mtime_ns < began:
            return None
    except OSError:
        return None
    return read_summary(job_dir)


def standing_lines(job_dir: Path) -> Iterator[str]:
    """Yields the lines of `trinity status` for a run that was started and has stopped.

    Raises: UserError if its plan cannot be read.
    """
    plan = _plan(job_dir)
    summary = last_summary(job_dir)
    if summary is None:
        yield f"{plan.label}  stopped: `trinity run` goes on with it"
    elif summary.state == FINISHED:
        yield f"{plan.label}  finished"
    else:
        yield f"{plan.label}  failed: {summary.reason}; `trinity run` goes on with it"
    for stage in plan.stages:
        yield f"  {stage.name}  {_checkpoint(job_dir, stage)}"
    if summary is not None:
        yield from result_lines(summary)
    yield f"in {job_dir}; `trinity view` shows what it explored, `trinity log` what was logged"


def _plan(job_dir: Path) -> _Plan:
    path = job_dir / PLAN_FILE
    try:
        return _Plan.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise UserError(f"cannot read {path}, which says what was started: {error}") from error


def _checkpoint(job_dir: Path, stage: _Stage) -> str:
    folders = (job_dir / "stages" / stage.name / "checkpoints").glob("step-*")
    steps = [int(found[1]) for path in folders if (found := _CHECKPOINT.fullmatch(path.name))]
    if not steps:
        return "no checkpoint yet"
    of = f" of {stage.total_train_steps}" if stage.total_train_steps else ""
    return f"newest checkpoint: step {max(steps)}{of}"
