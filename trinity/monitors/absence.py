"""A file that tells other processes that a monitor is unavailable."""

import contextlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

FILE = "away.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Absence:
    """A monitor that does not accept data; the run continues without it."""

    monitor: str
    reason: str
    since: float
    """Seconds since 1970."""

    def write(self, directory: Path) -> None:
        """Writes the file, best effort: a full disk may be why the monitor is unavailable."""
        temporary = directory / f"{FILE}.tmp"
        with contextlib.suppress(OSError):
            directory.mkdir(parents=True, exist_ok=True)
            temporary.write_text(json.dumps(asdict(self)) + "\n")
            temporary.replace(directory / FILE)

    @classmethod
    def read(cls, directory: Path) -> Self | None:
        """Returns None if the monitor accepts data, or if there is none."""
        try:
            return cls(**json.loads((directory / FILE).read_text()))
        except (OSError, ValueError, TypeError):
            return None

    @staticmethod
    def end(directory: Path) -> None:
        """Removes the file: the monitor is back, or no longer used."""
        with contextlib.suppress(OSError):
            (directory / FILE).unlink(missing_ok=True)
