"""Messages between the launcher and the supervisor, one line of JSON each."""

import json
from dataclasses import asdict, dataclass
from enum import StrEnum

from trinity.local.process_spec import ProcessSpec

USER_MISTAKE_EXIT_CODE = 2
"""Exit code of a process that says that restarting it would change nothing."""


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
class Start:
    """Starts these processes in this order; they are stopped in reverse order."""

    processes: list[ProcessSpec]


@dataclass(frozen=True, slots=True)
class StopAll:
    """Stops every process and ends the supervisor."""


Command = Start | StopAll


def command_to_line(command: Command) -> bytes:
    match command:
        case Start(processes):
            text = json.dumps({"start": [process.to_fields() for process in processes]})
        case StopAll():
            text = json.dumps({"stop_all": True})
    return text.encode() + b"\n"


def command_from_line(line: bytes) -> Command:
    fields = json.loads(line)
    if "start" in fields:
        return Start([ProcessSpec.from_fields(process) for process in fields["start"]])
    return StopAll()
