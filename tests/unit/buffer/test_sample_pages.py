"""A search for rare samples looks into more groups at once, page by page."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from services.buffer.domain.tasks import SampleCursor, SampleFilter
from services.buffer.servicer import samples
from services.buffer.servicer.samples import ROWS_PER_PAGE, SamplePages
from services.buffer.store.database import BufferDatabase
from services.buffer.store.queries import GROUPS_AT_ONCE, MOST_GROUPS_AT_ONCE, Page, PageRequest
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


async def looked_into(monkeypatch: pytest.MonkeyPatch, found: list[int]) -> list[int]:
    """Numbers of groups that pages look into, which find so many samples each."""
    asked: list[int] = []

    async def list_page(_: object, request: PageRequest) -> Page:
        asked.append(request.num_groups)
        rows = cast(Any, [Row()] * found[len(asked) - 1])
        return Page(rows=rows, end=CURSOR if len(asked) < len(found) else None)

    monkeypatch.setattr(samples, "list_page", list_page)
    pages = SamplePages(
        database=cast(BufferDatabase, NoDatabase()),
        key=StageKey(tenant="default", experiment_id="x", stage="rft"),
        wanted=SampleFilter(),
        with_content=False,
    )
    async for _ in pages.read_pages():
        pass
    return asked


async def test_pages_that_are_not_full_grow_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = await looked_into(monkeypatch, [0, 1, 0, 0, 0, 0])
    doubled = [GROUPS_AT_ONCE * 2**n for n in range(4)]
    assert asked == [*doubled, MOST_GROUPS_AT_ONCE, MOST_GROUPS_AT_ONCE]


async def test_full_pages_do_not_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: what is frequent is found in few groups."""
    assert await looked_into(monkeypatch, [ROWS_PER_PAGE] * 3) == [GROUPS_AT_ONCE] * 3
