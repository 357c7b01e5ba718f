"""Messages between launcher and supervisor: processes to run, commands and events."""

import json
import signal
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path

USER_ERROR_EXIT_CODE = 2
"""Exit code of a process that would fail again after a restart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSpec:
    """One process of the stack; `argv` starts with the absolute path of a program."""

    name: str
    argv: list[str]
    log_file: Path
    env: dict[str, str] = field(default_factory=dict)
    """Added to the supervisor's own environment."""
    stop_signal: int = signal.SIGTERM
    stop_grace_seconds: float = 10.0
    max_restarts: int = 5
    """Within ten minutes."""
    node: str = ""
    """The machine that it runs on; empty is the launcher's own."""


class EventKind(StrEnum):
    STARTED = "started"
    READY = "ready"
    EXITED = "exited"
    RESTARTED = "restarted"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class StackEvent:
    """Something that happened to a process; FAILED means that it will not be restarted."""

    kind: EventKind
    process: str
    pid: int
    restarts: int = 0
    exit_code: int | None = None
    """Negative: the number of the signal that ended it; None while it runs."""
    reason: str = ""
    log_file: str = ""
    log_tail: str = ""

    def to_line(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> "StackEvent":
        fields = json.loads(line)
        return cls(**{**fields, "kind": EventKind(fields["kind"])})


@dataclass(frozen=True, slots=True)
class StartProcess:
    """Starts these processes in this order; they are stopped in reverse order."""

    processes: list[ProcessSpec]


@dataclass(frozen=True, slots=True)
class StopAllProcesses:
    """Stops every process and ends the supervisor."""


Command = StartProcess | StopAllProcesses


def command_to_line(command: Command) -> bytes:
    match command:
        case StartProcess(processes):
            fields = {"start": [asdict(process) for process in processes]}
            return json.dumps(fields, default=str).encode() + b"\n"
        case StopAllProcesses():
            return b"{}\n"


def command_from_line(line: bytes) -> Command:
    fields = json.loads(line)
    if "start" not in fields:
        return StopAllProcesses()
    return StartProcess(
        [ProcessSpec(**{**spec, "log_file": Path(spec["log_file"])}) for spec in fields["start"]]
    )
