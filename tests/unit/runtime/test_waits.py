"""A process's waits: how long they have gone on, and when others are told."""

import asyncio
from collections.abc import Callable
from functools import partial

import pytest

from tests.unit.clock import Clock
from trinity.runtime.presence import CLOSED_WAIT_SECONDS, MAX_CLOSED_WAITS, WaitRegistry
from trinity.runtime.rpc.bounds import LIST_BYTES


@pytest.fixture
def told() -> list[None]:
    """One element each time that others are told."""
    return []


@pytest.fixture
def waits(told: list[None], clock: Clock) -> WaitRegistry:  # noqa: ARG001 time stands still
    return WaitRegistry(owner="explorer", on_change=lambda: told.append(None))


def test_a_named_wait_keeps_its_beginning_whatever_its_reason(
    waits: WaitRegistry, clock: Clock
) -> None:
    waits.set("lease", waits_for="buffer", reason="refused")
    clock.now += 30
    waits.set("lease", waits_for="buffer", reason="no route", deadline_seconds=100)
    (shown,) = waits.to_proto()
    assert (shown.owner, shown.waits_for, shown.reason) == ("explorer", "buffer", "no route")
    assert (shown.waited_seconds, shown.deadline_seconds) == (30, 70)


def test_a_cleared_name_begins_anew(waits: WaitRegistry, clock: Clock) -> None:
    waits.set("lease", waits_for="buffer", reason="refused")
    waits.clear("lease")
    assert waits.to_proto() == []
    clock.now += 30
    waits.set("lease", waits_for="buffer", reason="refused")
    assert waits.to_proto()[0].waited_seconds == 0


def test_the_longest_wait_is_shown_first(waits: WaitRegistry, clock: Clock) -> None:
    waits.set("weights", waits_for="trainer", reason="version 3")
    clock.now += 1
    waits.begin(for_="buffer", reason="commits")
    clock.now += 1
    waits.set("weights", waits_for="trainer", reason="version 3, again")
    assert [wait.waits_for for wait in waits.to_proto()] == ["trainer", "buffer"]


def test_others_are_told_of_changes_alone(waits: WaitRegistry, told: list[None]) -> None:
    for _ in range(3):
        waits.set("lease", waits_for="buffer", reason="refused")
    assert len(told) == 1
    for _ in range(3):
        waits.clear("lease")
    assert len(told) == 2


def test_a_wait_that_is_noticed_late_is_as_old_as_it_is_said_to_be(
    waits: WaitRegistry, clock: Clock
) -> None:
    waits.set("run", waits_for="workflow", reason="run 0", deadline_seconds=60, waited_seconds=5)
    clock.now += 1
    waits.set("run", waits_for="workflow", reason="run 0", deadline_seconds=60, waited_seconds=5)
    (shown,) = waits.to_proto()
    assert (shown.waited_seconds, shown.deadline_seconds) == (6, 54)


async def test_only_what_takes_longer_is_shown_and_then_from_its_beginning() -> None:
    told = asyncio.Event()
    waits = WaitRegistry(owner="explorer", on_change=told.set)
    with waits.waiting_if_longer(60.0, for_="buffer", reason="to lease work"):
        await asyncio.sleep(0)
    assert not told.is_set()
    with waits.waiting_if_longer(0.02, for_="buffer", reason="to lease work", deadline_seconds=9):
        await told.wait()
        (shown,) = waits.to_proto()
        assert 0.02 <= shown.waited_seconds < 9 and shown.deadline_seconds > 0
    assert waits.to_proto() == []


def test_a_long_wait_that_ended_is_kept_until_it_was_told(
    waits: WaitRegistry, clock: Clock
) -> None:
    waits.set_work("e1", "rft")
    waits.set("lease", waits_for="buffer", reason="refused")
    long = waits.begin(for_="trainer", reason="version 3")
    clock.now += 4
    waits.clear("lease")
    waits.clear("lease")
    waits.set_work("", "")
    waits.end(long)
    waits.end(long)
    clock.now += 10
    first, second = waits.closed_to_proto()
    assert (first.number, first.waits_for, first.reason) == (1, "buffer", "refused")
    assert (first.waited_seconds, first.ended_seconds_ago) == (4, 10)
    assert [(wait.experiment_id, wait.stage) for wait in (first, second)] == [
        ("e1", "rft"),
        ("", ""),
    ]
    waits.forget_closed(1)
    assert [wait.number for wait in waits.closed_to_proto()] == [2]


def test_a_short_wait_is_not_kept(waits: WaitRegistry, clock: Clock) -> None:
    short = waits.begin(for_="trainer", reason="version 3")
    clock.now += CLOSED_WAIT_SECONDS / 2
    waits.end(short)
    assert waits.closed_to_proto() == []


def test_of_very_many_waits_the_newest_are_kept(waits: WaitRegistry, clock: Clock) -> None:
    for _ in range(MAX_CLOSED_WAITS + 5):
        wait = waits.begin(for_="trainer", reason="x" * 5_000)
        clock.now += 2
        waits.end(wait)
    told = waits.closed_to_proto()
    assert len(told) == MAX_CLOSED_WAITS and told[-1].number == MAX_CLOSED_WAITS + 5
    size = sum(wait.ByteSize() for wait in told)
    assert size < LIST_BYTES, "a heartbeat with all of them is taken"


class SlowLock:
    """A lock that another thread has first, for a second, in which it does something."""

    def __init__(self, clock: Clock, meanwhile: Callable[[], object]) -> None:
        self._clock = clock
        self._meanwhile: Callable[[], object] = meanwhile

    def __enter__(self) -> None:
        self._clock.now += 1
        meanwhile, self._meanwhile = self._meanwhile, lambda: None
        meanwhile()

    def __exit__(self, *_: object) -> None:
        """Does nothing."""


def test_what_begins_or_ends_while_a_heartbeat_is_made_has_no_time_before_it(
    waits: WaitRegistry, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = waits.begin(for_="trainer", reason="version 3")
    clock.now += 4
    monkeypatch.setattr(waits, "_lock", SlowLock(clock, lambda: waits.end(ended)))
    (closed,) = waits.closed_to_proto()
    assert closed.ended_seconds_ago >= 0, "the synchronizer refuses a heartbeat with such a time"
    begin = partial(waits.begin, for_="buffer", reason="to lease work")
    monkeypatch.setattr(waits, "_lock", SlowLock(clock, begin))
    (shown,) = waits.to_proto()
    assert shown.waited_seconds >= 0
