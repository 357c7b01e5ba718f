"""Saves a configuration, and starts its run here or submits it to services; it outlives Studio."""

import asyncio
import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trinity.config.loading.load import load_config
from trinity.config.planning import plan_experiment
from trinity.errors import UserError
from trinity.run.deploy.submission import ExperimentSubmission, refuse_local_modes
from trinity.runtime.process.child_process import module_command
from trinity.runtime.rpc.errors import answer_of
from trinity.studio.connection import System

_NAME = re.compile(r"[^A-Za-z0-9._-]+")
SUFFIXES = (".yaml", ".yml")
SUBMIT_SECONDS = 10.0
"""Time that the synchronizer may take to answer each call."""
_started: list["subprocess.Popen[bytes]"] = []


@dataclass(frozen=True, slots=True)
class StartedRun:
    """A run that was started; its output is in the log."""

    pid: int
    log: Path


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


def start_run(config: Path, command: Sequence[str] = ()) -> StartedRun:
    """Starts `trinity run` in a new session, with its output in a log next to the file.

    Raises: UserError if the log cannot be written.
    """
    log = config.with_suffix(".log")
    program = command or module_command("trinity", "run", "--config", str(config))
    try:
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError as error:
        raise UserError(f"cannot write {log}: {error.strerror}") from error
    try:
        process = subprocess.Popen(
            program,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            cwd=Path.cwd(),
        )
    finally:
        os.close(output)
    _started.append(process)
    return StartedRun(process.pid, log)


def reap_started() -> None:
    """Collects the exit codes of runs that have ended."""
    _started[:] = [process for process in _started if process.poll() is None]


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


def last_lines(log: Path, num_lines: int = 8) -> str:
    """Returns the end of a log; untrusted text."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 16_384))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-num_lines:])
