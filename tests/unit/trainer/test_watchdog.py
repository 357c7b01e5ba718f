"""A gang is stuck once nobody in it has said anything for too long."""

from dataclasses import dataclass

import pytest

from services.trainer.control.attempt import START_SECONDS, Watchdog
from services.trainer.control.gang import RankEvent
from services.trainer.messages import RankActivity, RankAlive, RankReady, RankWaiting


@dataclass
class Clock:
    """Time that passes when told to."""

    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def watchdog(clock: Clock) -> Watchdog:
    """Of a gang that has begun, and may be silent for ten seconds."""
    watchdog = Watchdog(10, clock)
    watchdog.record_event(RankEvent(0, RankActivity(activity="training")))
    return watchdog


def waiting(seconds: float = 0.0) -> RankWaiting:
    return RankWaiting(name="batch", waits_for="buffer", reason="rows", deadline_seconds=seconds)


def test_silence_is_counted_from_the_last_word_of_any_rank(
    watchdog: Watchdog, clock: Clock
) -> None:
    clock.now += 8
    watchdog.record_event(RankEvent(1, RankAlive()))
    clock.now += 8
    assert watchdog.remaining_seconds() == 2
    clock.now += 4
    assert watchdog.remaining_seconds() == -2
    assert "12 s" in watchdog.timeout_reason
    assert "sync_timeout" in watchdog.timeout_reason


def test_a_named_wait_excuses_silence_up_to_its_own_end(watchdog: Watchdog, clock: Clock) -> None:
    watchdog.record_event(RankEvent(0, waiting(seconds=100)))
    clock.now += 60
    watchdog.record_event(RankEvent(0, waiting(seconds=100)))
    assert watchdog.remaining_seconds() == 50
    clock.now += 51
    assert watchdog.remaining_seconds() == -1


def test_a_wait_without_end_excuses_silence_until_it_is_over(
    watchdog: Watchdog, clock: Clock
) -> None:
    watchdog.record_event(RankEvent(0, waiting()))
    clock.now += 1e6
    assert watchdog.remaining_seconds() > 1e6
    watchdog.record_event(RankEvent(0, RankWaiting(name="batch")))
    assert watchdog.remaining_seconds() == 10


def test_importing_may_take_longer_than_a_step(clock: Clock) -> None:
    watchdog = Watchdog(10, clock)
    assert watchdog.remaining_seconds() == START_SECONDS
    watchdog.record_event(RankEvent(0, RankReady()))
    assert watchdog.remaining_seconds() == 10
