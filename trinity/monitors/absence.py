"""That a monitor is away, in a file for whoever asks in another terminal."""

import contextlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

FILE = "away.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Absence:
    """A monitor that does not take what it is given; the run goes on without it."""

    monitor: str
    reason: str
    since: float
    """Seconds since 1970."""

    def write(self, directory: Path) -> None:
        """Show it, where the disk takes it: a full one may be why the monitor is away."""
        temporary = directory / f"{FILE}.tmp"
        with contextlib.suppress(OSError):
            directory.mkdir(parents=True, exist_ok=True)
            temporary.write_text(json.dumps(asdict(self)) + "\n")
            temporary.replace(directory / FILE)

    @classmethod
    def read(cls, directory: Path) -> Self | None:
        """None where the monitor takes what it is given, or there is none."""
        try:
            return cls(**json.loads((directory / FILE).read_text()))
        except (OSError, ValueError, TypeError):
            return None

    @staticmethod
    def end(directory: Path) -> None:
        """It is back, or nobody waits for it any more."""
        with contextlib.suppress(OSError):
            (directory / FILE).unlink(missing_ok=True)
