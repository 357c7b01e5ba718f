"""A rank's waits, reported to its service, which shows them in its status."""

import threading
from collections.abc import Callable
from typing import Protocol

from services.trainer.messages import Waiting


class NamedWaits(Protocol):
    """Accepts waits by name; `trinity.waits.Waits` is one."""

    def set(
        self, name: str, *, waits_for: str, reason: str, deadline_seconds: float = 0.0
    ) -> None: ...

    def clear(self, name: str) -> None: ...


class RankWaits:
    """A rank's waits; thread-safe."""

    def __init__(self, send: Callable[[Waiting], None]) -> None:
        self._send = send
        self._lock = threading.Lock()
        self._open: set[str] = set()

    def set(self, name: str, *, waits_for: str, reason: str, deadline_seconds: float = 0.0) -> None:
        """Reports that the wait of this name continues."""
        with self._lock:
            self._open.add(name)
        self._send(
            Waiting(
                name=name, waits_for=waits_for, reason=reason, deadline_seconds=deadline_seconds
            )
        )

    def clear(self, name: str) -> None:
        """Reports that the wait of this name is over, if it was open."""
        with self._lock:
            is_open = name in self._open
            self._open.discard(name)
        if is_open:
            self._send(Waiting(name=name))
