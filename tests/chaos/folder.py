"""The folder in which the nemesis and the processes of a stack leave notes for one another."""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VARIABLE = "TRINITY_TEST_FAULTS"
"""Names the folder to every process of the stack."""
Line = dict[str, Any]


@dataclass(frozen=True, slots=True)
class FaultsFolder:
    """Points that are armed, protections that are off, points reached, and journals."""

    path: Path

    @classmethod
    def from_environment(cls) -> "FaultsFolder":
        """The folder of the stack that this process is part of."""
        return cls(Path(os.environ[VARIABLE]))

    def make(self) -> None:
        """Create what is in it."""
        for name in ("armed", "off", "reached", "journal"):
            (self.path / name).mkdir(parents=True, exist_ok=True)

    def arm(self, point: str) -> None:
        """Have the next process that comes to this point kill itself there."""
        (self.path / "armed" / point).touch()

    def disarm(self, point: str) -> bool:
        """Take it back, or claim it; false when it was not armed. One arming is one death."""
        try:
            (self.path / "armed" / point).unlink()
        except FileNotFoundError:
            return False
        return True

    def switch_off(self, protection: str) -> None:
        """Let the stack go on without a protection."""
        (self.path / "off" / protection).touch()

    def switch_on(self, protection: str) -> None:
        """Have it protected again."""
        (self.path / "off" / protection).unlink(missing_ok=True)

    def is_off(self, protection: str) -> bool:
        """Whether a protection is switched off."""
        return (self.path / "off" / protection).exists()

    def count_reached(self, point: str) -> None:
        """Note that a process came to this point."""
        _append(self.path / "reached" / point, b".")

    def times_reached(self, point: str) -> int:
        """How often processes came to this point."""
        file = self.path / "reached" / point
        return file.stat().st_size if file.exists() else 0

    def log(self, journal: str, line: Line) -> None:
        """Add a line, which outlives this process however soon it dies."""
        _append(self.path / "journal" / journal, json.dumps(line).encode() + b"\n")

    def read(self, journal: str, **wanted: str) -> Iterator[Line]:
        """The lines whose fields have these values, in their order."""
        file = self.path / "journal" / journal
        if not file.exists():
            return
        for text in file.read_text().splitlines():
            line: Line = json.loads(text)
            if all(line[name] == value for name, value in wanted.items()):
                yield line


def _append(path: Path, content: bytes) -> None:
    """In one write, so that what another process appends is never torn."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, content)
    finally:
        os.close(descriptor)
