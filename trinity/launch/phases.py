"""Time accounting of a run: consecutive phases without a gap."""

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

TOTAL = "total"
SECONDS_FILE = "seconds.json"
KEEP_SECONDS = 10.0
"""The most that a killed launcher forgets."""


class Phases:
    """Seconds by phase; a repeated phase adds up.

    phases = Phases("start")
    phases.begin("rft")
    phases.seconds()  # {"start": 4.1, "rft": 0.2}
    """

    def __init__(self, first: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._current = first
        self._since = clock()
        self._passed: dict[str, float] = {}

    def begin(self, name: str) -> None:
        """Ends the current phase and starts another."""
        now = self._clock()
        self._passed[self._current] = self._passed.get(self._current, 0.0) + now - self._since
        self._current, self._since = name, now

    def seconds(self) -> dict[str, float]:
        """Returns the seconds of all phases so far."""
        self.begin(self._current)
        return dict(self._passed)


class AllStarts:
    """The phases of this start and of earlier starts, kept in the run's directory."""

    def __init__(self, phases: Phases) -> None:
        self._phases = phases
        self._before: dict[str, float] | None = None

    def read(self, job_dir: Path) -> None:
        """Reads the earlier starts; call it when no other launcher works in the directory."""
        try:
            kept = json.loads((job_dir / SECONDS_FILE).read_bytes())
            self._before = {str(name): float(value) for name, value in kept.items()}
        except (OSError, ValueError, TypeError, AttributeError):
            self._before = {}  # a first start, or a damaged file: figures must not stop a run

    def keep(self, job_dir: Path) -> None:
        """Writes the phases for the next start; does nothing until `read` was called."""
        if self._before is None:
            return
        path = job_dir / SECONDS_FILE
        temporary = path.with_suffix(".tmp")
        with contextlib.suppress(OSError):  # a full disk is reported where it matters
            job_dir.mkdir(parents=True, exist_ok=True)
            temporary.write_text(json.dumps(added(self._before, self._phases.seconds())))
            temporary.replace(path)

    async def keep_on(self, job_dir: Path) -> NoReturn:
        """Writes the phases periodically; never returns."""
        while True:
            self.keep(job_dir)
            await asyncio.sleep(KEEP_SECONDS)

    def seconds(self) -> dict[str, float]:
        """Returns the rounded phases of all starts, and their `total`."""
        summed = added(self._before or {}, self._phases.seconds())
        rounded = {name: round(value, 2) for name, value in summed.items()}
        return {**rounded, TOTAL: round(sum(rounded.values()), 2)}


def added(before: Mapping[str, float], now: Mapping[str, float]) -> dict[str, float]:
    """Adds phase by phase, in the order in which they first came."""
    return {name: before.get(name, 0.0) + now.get(name, 0.0) for name in {**before, **now}}
