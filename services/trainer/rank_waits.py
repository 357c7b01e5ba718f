"""What a rank waits for, told to its service, which shows it to everybody."""

import threading
from collections.abc import Callable
from typing import Protocol

from services.trainer.messages import Waiting


class NamedWaits(Protocol):
    """Takes waits by name; `trinity.waits.Waits` is one."""

    def set(
        self, name: str, *, waits_for: str, reason: str, deadline_seconds: float = 0.0
    ) -> None: ...

    def clear(self, name: str) -> None: ...


class RankWaits:
    """A rank's waits; usable from threads."""

    def __init__(self, send: Callable[[Waiting], None]) -> None:
        self._send = send
        self._lock = threading.Lock()
        self._open: set[str] = set()

    def set(self, name: str, *, waits_for: str, reason: str, deadline_seconds: float = 0.0) -> None:
        """Say that the wait of this name goes on."""
        with self._lock:
            self._open.add(name)
        self._send(
            Waiting(
                name=name, waits_for=waits_for, reason=reason, deadline_seconds=deadline_seconds
            )
        )

    def clear(self, name: str) -> None:
        """Say that the wait of this name is over, if it goes on."""
        with self._lock:
            is_open = name in self._open
            self._open.discard(name)
        if is_open:
            self._send(Waiting(name=name))
