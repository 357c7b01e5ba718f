"""A search for rare samples looks into more groups at once, page by page."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from services.buffer.domain.tasks import SampleCursor, SampleFilter
from services.buffer.servicer import samples
from services.buffer.servicer.samples import (
    MOST_ROWS_PER_PAGE,
    ROWS_PER_PAGE,
    SamplePage,
    SamplePages,
)
from services.buffer.store.database import BufferDatabase
from services.buffer.store.queries import (
    GROUPS_AT_ONCE,
    MOST_GROUPS_AT_ONCE,
    Page,
    PageRequest,
    StepRange,
)
from trinity.types import StageKey

CURSOR = SampleCursor(
    explore_step=1, position=0, run=0, step=0, suffix="", revision=0, experience_id="e"
)


class NoDatabase:
    """Opens transactions that nothing is asked in."""

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        yield None


class Row:
    """Stands for a sample that is found."""

    cursor = CURSOR
    experience_id = "e"


async def looks(
    monkeypatch: pytest.MonkeyPatch,
    found: list[int],
    *,
    wanted: SampleFilter | None = None,
    steps: StepRange | None = None,
    parts: list[SamplePage] | None = None,
) -> list[PageRequest]:
    """The pages of a search that look at so many samples each, none of which holds its text."""
    asked: list[PageRequest] = []

    async def list_page(_: object, request: PageRequest) -> Page:
        asked.append(request)
        number = found[len(asked) - 1]
        rows = cast(Any, [] if request.wanted.text else [Row()] * number)
        end = CURSOR if len(asked) < len(found) else None
        return Page(rows=rows, end=end, num_examined=number)

    async def steps_of_versions(*_: object) -> StepRange | None:
        return steps

    async def sizes_of(*_: object, **__: object) -> dict[str, int]:
        return {}

    monkeypatch.setattr(samples, "list_page", list_page)
    monkeypatch.setattr(samples, "steps_of_versions", steps_of_versions)
    monkeypatch.setattr(samples, "sizes_of", sizes_of)
    pages = SamplePages(
        database=cast(BufferDatabase, NoDatabase()),
        key=StageKey(tenant="default", experiment_id="x", stage="rft"),
        wanted=wanted or SampleFilter(),
        with_content=False,
    )
    told = [part async for part in pages.read_pages()]
    if parts is not None:
        parts += told
    return asked


async def looked_into(monkeypatch: pytest.MonkeyPatch, found: list[int]) -> list[int]:
    """Numbers of groups that pages look into, which find so many samples each."""
    return [look.num_groups for look in await looks(monkeypatch, found)]


async def test_pages_that_are_not_full_grow_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = await looked_into(monkeypatch, [0, 1, 0, 0, 0, 0])
    doubled = [GROUPS_AT_ONCE * 2**n for n in range(4)]
    assert asked == [*doubled, MOST_GROUPS_AT_ONCE, MOST_GROUPS_AT_ONCE]


async def test_full_pages_do_not_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: what is frequent is found in few groups."""
    assert await looked_into(monkeypatch, [ROWS_PER_PAGE] * 3) == [GROUPS_AT_ONCE] * 3


OF_WEIGHTS = SampleFilter(version_min=5)


async def test_a_search_for_weights_looks_into_the_steps_that_have_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    range_of_steps = StepRange(3, 9)
    found = await looks(monkeypatch, [0, 1, 0], wanted=OF_WEIGHTS, steps=range_of_steps)
    assert [look.steps for look in found] == [None, range_of_steps, range_of_steps]
    assert [look.num_groups for look in found] == [GROUPS_AT_ONCE, GROUPS_AT_ONCE, 512]


async def test_a_search_for_weights_that_no_sample_has_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert len(await looks(monkeypatch, [0, 0, 0], wanted=OF_WEIGHTS)) == 1


async def test_frequent_weights_are_found_without_asking_for_their_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The control: that would read all rows that have them."""
    found = await looks(monkeypatch, [ROWS_PER_PAGE] * 2, wanted=OF_WEIGHTS)
    assert [look.steps for look in found] == [None, None]


async def test_a_search_for_a_text_says_how_many_samples_it_has_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parts: list[SamplePage] = []
    await looks(monkeypatch, [256, 512, 100, 0], wanted=SampleFilter(text="x"), parts=parts)
    assert [(len(part.rows), part.num_examined) for part in parts] == [(0, 256), (0, 512), (0, 100)]
    parts = []
    await looks(monkeypatch, [256, 512, 0], parts=parts)
    assert [part.num_examined for part in parts] == [0, 0], "the control: without a text"


async def test_a_text_that_no_sample_has_is_looked_for_in_ever_more_samples(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes = [ROWS_PER_PAGE * 2**number for number in range(4)]
    found = await looks(monkeypatch, [*sizes, sizes[-1], 0], wanted=SampleFilter(text="x"))
    assert [look.size for look in found] == [*sizes, MOST_ROWS_PER_PAGE, MOST_ROWS_PER_PAGE]
