"""run.json: what runs in a job directory right now, for a command line in another terminal."""

import json
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path

from pydantic import TypeAdapter

from trinity.run.local.addresses import ServiceAddresses
from trinity.run.local.reaper import lock_owner_pid
from trinity.runtime.security.secret_files import write_private

_NAME = "run.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessExit:
    """A process that ended by itself; it has been restarted, or will be."""

    pid: int
    last_words: str
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningStack:
    """The addresses and process numbers of a stack; the file exists only while it runs."""

    addresses: ServiceAddresses
    launcher_pid: int
    supervisor_pid: int
    pids: dict[str, int]
    started_at: datetime
    deaths: dict[str, ProcessExit] = field(default_factory=dict)
    """The last death of each process that was restarted."""

    def write_run_file(self, job_dir: Path) -> None:
        text = json.dumps(asdict(self), indent=2, default=datetime.isoformat)
        write_private(job_dir / _NAME, text + "\n")


def read_running(job_dir: Path) -> RunningStack | None:
    """Returns the stack that runs in the directory, or None if its launcher is gone.

    A running stack has written its file completely: a truncated one is from an earlier stack.
    """
    try:
        fields = json.loads((job_dir / _NAME).read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    if fields["launcher_pid"] != lock_owner_pid(job_dir):
        return None
    return TypeAdapter(RunningStack).validate_python(fields)


def remove_run_file(job_dir: Path) -> None:
    (job_dir / _NAME).unlink(missing_ok=True)
