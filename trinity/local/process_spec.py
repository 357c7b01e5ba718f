"""The supervisor's description of one process: how to start, restart and stop it."""

import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict


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
