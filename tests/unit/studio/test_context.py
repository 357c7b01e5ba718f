"""Pages cost a running run little: answers are kept for some seconds."""

from typing import cast

import pytest

from trinity.run.state import MemberReport, WaitReport
from trinity.studio.connection import OpenRun
from trinity.studio.context import NEW_CLOSED_WAITS, DueWaits, KeptAnswer
from trinity.studio.lanes import MAX_STORED

HERE, AFTER_A_RESTART = cast(OpenRun, object()), cast(OpenRun, object())


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that the first element says."""
    now = [100.0]
    monkeypatch.setattr("trinity.studio.context.time.monotonic", lambda: now[0])
    return now


def test_an_answer_is_asked_for_once_in_its_time(clock: list[float]) -> None:
    kept, asked = KeptAnswer[int](10.0), iter(range(9))

    def get(opened: OpenRun = HERE) -> int:
        return kept.get(opened, lambda: next(asked))

    assert [get(), get()] == [0, 0]
    clock[0] += 9.9
    assert get() == 0
    clock[0] += 0.2
    assert get() == 1
    assert get(AFTER_A_RESTART) == 2, "other services may answer otherwise"


def test_news_of_the_run_make_an_answer_old_sooner(clock: list[float]) -> None:
    kept, asked = KeptAnswer[int](10.0, 4.0), iter(range(9))

    def get(news: int) -> int:
        return kept.get(HERE, lambda: next(asked), news=news)

    assert get(1) == 0
    clock[0] += 3.9
    assert get(2) == 0, "pages of several viewers share it"
    clock[0] += 0.2
    assert get(2) == 1
    clock[0] += 9.0
    assert get(2) == 1, "nothing is new"
    clock[0] += 1.0
    assert get(2) == 2


def member(*waits_for: str) -> MemberReport:
    waits = tuple(
        WaitReport(owner="", waits_for=target, reason="", waited_seconds=0.0)
        for target in waits_for
    )
    return MemberReport(id="m", role="explorer", activity="", waits=waits)


def test_ended_waits_are_asked_for_where_one_has_ended(clock: list[float]) -> None:
    due, asked = DueWaits(), []
    for told in (("trainer",), ("trainer",), ("buffer",), ("buffer",), ("buffer",)):
        asked.append(due.number())
        due.observe([member(*told)], asked[-1], is_whole=True)
        clock[0] += 2.0
    assert asked == [MAX_STORED, 0, 0, NEW_CLOSED_WAITS, 0]


def test_ended_waits_are_asked_for_from_time_to_time(clock: list[float]) -> None:
    """Short ones begin and end between two looks."""
    due, asked = DueWaits(), []
    for _ in range(8):
        asked.append(due.number())
        due.observe([member("trainer")], asked[-1], is_whole=True)
        clock[0] += 2.0
    assert asked == [MAX_STORED, 0, 0, 0, 0, NEW_CLOSED_WAITS, 0, 0]


def test_where_all_of_the_newest_are_new_all_are_asked_for() -> None:
    due = DueWaits()
    due.observe([], MAX_STORED, is_whole=False)
    assert due.number() == MAX_STORED
    due.observe([], MAX_STORED, is_whole=True)
    assert due.number() == 0


def test_an_answer_that_fails_is_asked_for_again() -> None:
    kept = KeptAnswer[int](10.0)
    with pytest.raises(TimeoutError):
        kept.get(HERE, _fail)
    assert kept.get(HERE, lambda: 7) == 7


def _fail() -> int:
    raise TimeoutError
