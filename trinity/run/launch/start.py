"""Starts a command of this program as a process that outlives the one that starts it."""

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trinity.errors import UserError
from trinity.runtime.process.child_process import module_command

_started: list["subprocess.Popen[bytes]"] = []


@dataclass(frozen=True, slots=True)
class StartedRun:
    """A run that was started; its output is in the log."""

    pid: int
    log: Path
    process: "subprocess.Popen[bytes]" = field(repr=False, compare=False)


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
    return StartedRun(process.pid, log, process)


def reap_started() -> None:
    """Collects the exit codes of runs that have ended."""
    _started[:] = [process for process in _started if process.poll() is None]


def last_lines(log: Path, num_lines: int = 8) -> str:
    """Returns the end of a log; untrusted text."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 16_384))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-num_lines:])
