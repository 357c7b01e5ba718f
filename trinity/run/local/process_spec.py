"""Messages between launcher and supervisor: processes to run, commands and events."""

import json
import signal
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TypedDict

USER_ERROR_EXIT_CODE = 2
"""Exit code of a process that says that restarting it would change nothing."""


class ProcessFields(TypedDict):
    """A process as JSON from the launcher to the supervisor."""

    name: str
    argv: list[str]
    log_file: str
    env: dict[str, str]
    stop_signal: int
    stop_grace_seconds: float
    max_restarts: int


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

    def to_fields(self) -> ProcessFields:
        return ProcessFields(
            name=self.name,
            argv=self.argv,
            log_file=str(self.log_file),
            env=self.env,
            stop_signal=int(self.stop_signal),
            stop_grace_seconds=self.stop_grace_seconds,
            max_restarts=self.max_restarts,
        )

    @classmethod
    def from_fields(cls, fields: ProcessFields) -> "ProcessSpec":
        return cls(
            name=fields["name"],
            argv=fields["argv"],
            log_file=Path(fields["log_file"]),
            env=fields["env"],
            stop_signal=fields["stop_signal"],
            stop_grace_seconds=fields["stop_grace_seconds"],
            max_restarts=fields["max_restarts"],
        )


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
            text = json.dumps({"start": [process.to_fields() for process in processes]})
        case StopAllProcesses():
            text = json.dumps({"stop_all": True})
    return text.encode() + b"\n"


def command_from_line(line: bytes) -> Command:
    fields = json.loads(line)
    if "start" in fields:
        return StartProcess([ProcessSpec.from_fields(process) for process in fields["start"]])
    return StopAllProcesses()
