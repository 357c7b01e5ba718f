"""A clock for waits that passes when told to."""

from dataclasses import dataclass

import pytest


@dataclass
class Clock:
    """Time that passes when told to."""

    now: float = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("trinity.runtime.presence.time.monotonic", clock)
    return clock
