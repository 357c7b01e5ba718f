"""The silences of ranks that are told after their end, among the waits that others wait."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from services.trainer.control import attempt as attempts
from services.trainer.control.attempt import (
    SHOWN_SILENCE_SECONDS,
    TOLD_SILENCE_SECONDS,
    StageAttempt,
    Watchdog,
)
from services.trainer.control.gang import RankEvent
from services.trainer.control.status import TrainerState
from services.trainer.messages import RankAlive
from trinity.runtime.presence import Heartbeats, WaitRegistry


class Gang:
    """One rank, which gives a sign of life once its silence is shown."""

    num_ranks = 1

    def __init__(self, shown: asyncio.Event) -> None:
        self._shown = shown

    async def next_event(self) -> RankEvent:
        """Returns the sign."""
        await self._shown.wait()
        return RankEvent(0, RankAlive())


class Watcher:
    """The stage is to be trained."""

    update_count = 0
    is_connected = True

    def is_to_be_trained(self, _: object) -> bool:
        """Returns True."""
        return True

    async def wait_for_update(self, _: int) -> None:
        """Waits until it is cancelled."""
        await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("seconds", "num_told"), [(SHOWN_SILENCE_SECONDS + 1, 0), (TOLD_SILENCE_SECONDS + 1, 1)]
)
async def test_only_a_long_silence_is_told_after_its_end(
    seconds: float, num_told: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempts, "SHOWN_SILENCE_SECONDS", 0.0)
    shown = asyncio.Event()
    waits = WaitRegistry(owner="trainer", on_change=shown.set)
    attempt = StageAttempt(
        gang=cast(Any, Gang(shown)),
        job=cast(Any, SimpleNamespace(key=None)),
        watcher=cast(Any, Watcher()),
        state=TrainerState(heartbeats=cast(Heartbeats, SimpleNamespace(waits=waits))),
        stop=asyncio.Event(),
        stop_seconds=1.0,
    )
    now = iter([0.0])
    watchdog = Watchdog(3600.0, clock=lambda: next(now, seconds))
    assert isinstance(await attempt._next_event_or_end(watchdog), RankEvent)
    assert len(waits.closed_to_proto()) == num_told
    assert not waits.to_proto()
