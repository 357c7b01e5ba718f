"""A search for a text goes on from where it was, and says how far it is."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from streamlit.testing.v1 import AppTest

from tests.unit.studio.fake_run import KEY, FakeStudio
from tests.unit.studio.test_runs import a_run
from trinity.api.v1 import experience_pb2, query_pb2
from trinity.errors import UserError
from trinity.studio.connection import OpenRun
from trinity.studio.experiences import (
    LOOK_AT,
    MAX_COUNTED,
    Counted,
    TextSearch,
    count_experiences,
    names_a_text,
)
from trinity.studio.pages.experiences import examined_text

HOLDING = (7, 9_000, 25_000)
"""Places of the experiences that hold the text, from the newest on."""
TOTAL = 30_000
A_LOOK = 2_000


class Call:
    """A stream of answers; the buffer looks at some experiences at a time."""

    def __init__(self, request: query_pb2.ListExperiencesRequest) -> None:
        self.request = request
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True

    async def __aiter__(self) -> AsyncIterator[query_pb2.ListExperiencesResponse]:
        place, left = int(self.request.cursor or 0), self.request.limit
        while place < TOTAL:
            end = min(place + A_LOOK, TOTAL)
            for held in HOLDING:
                if place <= held < end:
                    yield answer([f"{held}"], held + 1)
                    left -= 1
                    if not left:
                        return
            if end < TOTAL:
                yield query_pb2.ListExperiencesResponse(cursor=f"{end}", num_examined=end - place)
            place = end


def answer(ids: Sequence[str], place: int) -> query_pb2.ListExperiencesResponse:
    sequence = experience_pb2.Sequence(response_text="an answer")
    content = experience_pb2.Experience(sequence=sequence)
    records = [query_pb2.ExperienceRecord(id=one, content=content) for one in ids]
    return query_pb2.ListExperiencesResponse(experiences=records, cursor=f"{place}")


class Buffer:
    """Answers searches, and keeps what it was asked."""

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def ListExperiences(self, request: query_pb2.ListExperiencesRequest, **_: Any) -> Call:
        self.calls.append(Call(request))
        return self.calls[-1]


@pytest.fixture
def buffer() -> Buffer:
    return Buffer()


@pytest.fixture
def opened(buffer: Buffer) -> OpenRun:
    return cast(OpenRun, type("Opened", (), {"queries": buffer})())


async def test_a_look_ends_after_some_experiences_and_the_next_goes_on(
    buffer: Buffer, opened: OpenRun
) -> None:
    search = TextSearch(conditions=("text=answer",))
    found = []
    while not search.is_done:
        await search.go_on(opened, KEY, wanted=51)
        found.append((search.num_examined, [row.id for row in search.rows]))
    assert found[0] == (LOOK_AT, ["7", "9000"])
    assert found[-1][1] == ["7", "9000", "25000"]
    assert [call.is_cancelled for call in buffer.calls] == [True, True, False]
    assert [call.request.cursor for call in buffer.calls] == ["", "10000", "20000"]


async def test_a_search_that_has_found_enough_asks_no_more(buffer: Buffer, opened: OpenRun) -> None:
    search = TextSearch(conditions=("text=answer",))
    for _ in range(3):
        await search.go_on(opened, KEY, wanted=1)
    assert ([row.id for row in search.rows], search.is_done) == (["7"], False)
    assert len(buffer.calls) == 1
    await search.go_on(opened, KEY, wanted=2)
    assert [row.id for row in search.rows] == ["7", "9000"], "the next page goes on after it"


async def test_a_condition_that_cannot_be_read_is_named(opened: OpenRun) -> None:
    with pytest.raises(UserError, match="colour"):
        await TextSearch(conditions=("text=x", "colour=red")).go_on(opened, KEY, wanted=1)


def test_only_a_text_makes_contents_be_read() -> None:
    assert names_a_text(["reward=1", "text=a b"])
    assert not names_a_text(["taskset=text"])


def test_how_far_it_is_stands_in_words() -> None:
    search = TextSearch(conditions=(), num_examined=20_000)
    assert examined_text(search, 1_000_000) == (
        "0 found so far in the newest 20,000 of about 1,000,000"
    )
    search.is_done = True
    assert examined_text(search, 1_000_000) == "0 found; all were looked at"


class Many:
    """Answers with so many experiences, two at a time."""

    def __init__(self, number: int) -> None:
        self.number = number

    def ListExperiences(self, request: query_pb2.ListExperiencesRequest, **_: Any) -> "Many":
        self.number = min(self.number, request.limit)
        return self

    def cancel(self) -> None:
        """Nothing is sent any more."""

    async def __aiter__(self) -> AsyncIterator[query_pb2.ListExperiencesResponse]:
        for _ in range(-(-self.number // 2)):
            yield answer(["a", "b"], 0)


@pytest.mark.parametrize(
    ("number", "counted"),
    [(12, Counted(12, is_all=True)), (10**6, Counted(MAX_COUNTED, is_all=False))],
)
async def test_a_count_says_whether_it_is_of_all(number: int, counted: Counted) -> None:
    opened = cast(OpenRun, type("Opened", (), {"queries": Many(number)})())
    assert await count_experiences(opened, KEY, ["reward=1"]) == counted


async def test_counting_ends_after_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(100))
    monkeypatch.setattr("trinity.studio.experiences.time.monotonic", lambda: float(next(now)))
    opened = cast(OpenRun, type("Opened", (), {"queries": Many(100)})())
    assert await count_experiences(opened, KEY, ["reward=1"]) == Counted(2, is_all=False)


def experiences_page() -> None:
    from trinity.studio.pages import experiences

    experiences.show()


def test_the_page_says_how_far_a_search_for_a_text_went(
    tmp_path: Path, buffer: Buffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[list[str]] = []
    monkeypatch.setattr(
        "trinity.studio.pages.common.show_table",
        lambda *args, **_: shown.append([row.id for row in args[2]]),
    )
    count = query_pb2.StateCount(state="EXPERIENCE_STATE_READY", count=TOTAL)
    stage = query_pb2.StoredStage(key=KEY, counts=[count])
    studio = FakeStudio(a_run(tmp_path), ListStages=query_pb2.ListStagesResponse(stages=[stage]))
    studio.service.ListExperiences = buffer.ListExperiences  # type: ignore[attr-defined]
    studio.show()
    app = AppTest.from_function(experiences_page)
    app.query_params["where"] = "text=answer"
    app.run(timeout=30)
    assert not app.exception
    assert shown == [["7", "9000", "25000"]]
    texts = [text.value for text in app.text]
    assert "3 found; all were looked at" in texts
    assert "1 to 3 of 3, the newest first" in texts
    num_calls = len(buffer.calls)
    app.run(timeout=30)
    assert len(buffer.calls) == num_calls, "what was found is kept while the conditions stay"
