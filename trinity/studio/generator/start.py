"""Saves a configuration, and starts its run here or submits it to services; it outlives Studio."""

import asyncio
import re
from dataclasses import dataclass
from pathlib import Path

from trinity.config.loading.load import load_config
from trinity.config.planning import plan_experiment
from trinity.errors import UserError
from trinity.run.deploy.submission import ExperimentSubmission, refuse_local_modes
from trinity.runtime.rpc.errors import answer_of
from trinity.studio.connection import System

_NAME = re.compile(r"[^A-Za-z0-9._-]+")
SUFFIXES = (".yaml", ".yml")
SUBMIT_SECONDS = 10.0
"""Time that the synchronizer may take to answer each call."""


@dataclass(frozen=True, slots=True)
class SubmittedRun:
    """An experiment that services run now."""

    experiment_id: str
    told: tuple[str, ...]
    """The services' messages about the submission; they may quote users' data."""


def file_name(project: str, name: str) -> str:
    """Returns `<project>-<name>.yaml`."""
    return f"{_NAME.sub('_', project) or 'trinity'}-{_NAME.sub('_', name) or 'run'}.yaml"


def save(text: str, path: Path, *, may_replace: bool) -> Path:
    """Writes the file and returns its full path.

    Raises: UserError if it exists and may not be replaced, or cannot be written.
    """
    path = path.expanduser().resolve()
    if path.suffix not in SUFFIXES:
        raise UserError(f"{path} is not saved: give a name that ends with .yaml")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w" if may_replace else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UserError(
            f"{path} exists: give another name, or allow that the file is replaced"
        ) from None
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from error
    return path


async def submit_run(config: Path, system: System) -> SubmittedRun:
    """Submits the run of a configuration to services, as `trinity deploy submit` does.

    Raises: TrinityError, with what to do.
    """
    plan = await asyncio.to_thread(lambda: plan_experiment(load_config(config)))
    refuse_local_modes(plan)
    submission = ExperimentSubmission(
        plan=plan,
        synchronizer=system.synchronizer,
        buffer=system.buffer,
        accept_command="trinity deploy submit --accept-changes",
        security=system.security,
        answer_seconds=SUBMIT_SECONDS,
    )
    told: list[str] = []
    experiment = await answer_of(submission.submit(told.append))
    return SubmittedRun(experiment_id=experiment.id, told=tuple(told))
