"""What this process is doing and what it waits for, as others get to see it."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedWait:
    """Something waited for since `since`, by the clock of `time.monotonic`."""

    waits_for: str
    reason: str
    since: float


@dataclass(slots=True)
class Status:
    """Written by the parts that do the work, read by heartbeats and by the servicer."""

    explorer_id: str
    experiment_id: str = ""
    stage: str = ""
    activity: str = "starting"
    loaded_version: int = -1
    pinned_versions: frozenset[int] = frozenset()
    num_running: int = 0
    num_generated_tokens: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when anything but the two counts is another."""
    _waits: dict[str, NamedWait] = field(default_factory=dict)

    @property
    def waits(self) -> list[NamedWait]:
        """What is waited for now, oldest first."""
        return sorted(self._waits.values(), key=lambda wait: wait.since)

    def set_work(self, experiment_id: str, stage: str) -> None:
        """Say which stage of which experiment is worked on; empty when none is."""
        self.experiment_id, self.stage = experiment_id, stage
        self.changed.set()

    def set_activity(self, activity: str) -> None:
        """Say in a few words what is being done."""
        self.activity = activity
        self.changed.set()

    def set_weights(self, loaded_version: int, pinned_versions: frozenset[int]) -> None:
        """Say which version is loaded, and the files of which are needed."""
        self.loaded_version, self.pinned_versions = loaded_version, pinned_versions
        self.changed.set()

    def wait_for(self, name: str, waits_for: str, reason: str) -> None:
        """Say that a wait goes on; it began when its `name` was first given."""
        before = self._waits.get(name)
        since = before.since if before else time.monotonic()
        self._waits[name] = NamedWait(waits_for=waits_for, reason=reason, since=since)
        self.changed.set()

    def stop_waiting(self, name: str) -> None:
        """Say that a wait is over."""
        if self._waits.pop(name, None):
            self.changed.set()

    @contextmanager
    def waiting(self, name: str, waits_for: str, reason: str) -> Iterator[None]:
        """A wait for the length of the block."""
        self.wait_for(name, waits_for, reason)
        try:
            yield
        finally:
            self.stop_waiting(name)
