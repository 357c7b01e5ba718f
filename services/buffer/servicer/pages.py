"""Pages of samples, each read in its own transaction and small enough for a message."""

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from services.buffer.domain.filter import Cursor, Filter
from services.buffer.servicer.records import says
from services.buffer.store.contents import find_bodies
from services.buffer.store.database import Database
from services.buffer.store.queries import Look, StoredExperience, list_page, sizes_of
from trinity.types import StageKey

ROWS_A_PAGE = 256
BYTES_A_PAGE = 8 * 1024 * 1024
Row = TypeVar("Row")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Consecutive samples, with their contents if requested and still there."""

    rows: Sequence[StoredExperience]
    bodies: dict[str, bytes]
    end: Cursor
    """The place to continue from: after the last sample, or the last one examined."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pages:
    """Reads all samples that match a filter, with bounded memory."""

    database: Database
    key: StageKey
    wanted: Filter
    with_content: bool
    latest_first: bool = False

    async def parts(self, after: Cursor | None = None) -> AsyncIterator[Part]:
        """Yields the samples in order, starting after a place."""
        while True:
            async with self.database.transaction() as connection:
                page = await list_page(connection, self._look(after))
            async for part in self._parts_of(page.rows):
                yield part
            if page.end is None:
                return
            after = page.end

    def _look(self, after: Cursor | None) -> Look:
        return Look(
            key=self.key,
            wanted=self.wanted,
            after=after,
            size=ROWS_A_PAGE,
            latest_first=self.latest_first,
        )

    async def _parts_of(self, rows: Sequence[StoredExperience]) -> AsyncIterator[Part]:
        if not rows:
            return
        if not self.with_content and not self.wanted.text:
            yield Part(rows=rows, bodies={}, end=rows[-1].cursor)
            return
        async with self.database.transaction() as connection:
            sizes = await sizes_of(connection, self.key, rows, holding=self.wanted.text)
        if self.wanted.text:
            rows = [row for row in rows if row.experience_id in sizes]
        for part in by_size(rows, lambda row: sizes.get(row.experience_id, 0)):
            yield await self._read(part, sizes)

    async def _read(self, rows: Sequence[StoredExperience], sizes: dict[str, int]) -> Part:
        ids = [row.experience_id for row in rows if row.experience_id in sizes]
        async with self.database.transaction() as connection:
            bodies = await find_bodies(connection, self.key, ids)
        end = rows[-1].cursor
        if self.wanted.text:
            own = {
                experience_id: body
                for experience_id, body in bodies.items()
                if says(body, self.wanted.text)
            }
            rows = [row for row in rows if row.experience_id in own]
        return Part(rows=rows, bodies=bodies if self.with_content else {}, end=end)


def by_size(rows: Sequence[Row], size_of: Callable[[Row], int]) -> Iterator[Sequence[Row]]:
    """Splits rows in order into parts whose contents fit into a message."""
    part: list[Row] = []
    num_bytes = 0
    for row in rows:
        size = size_of(row)
        if part and num_bytes + size > BYTES_A_PAGE:
            yield part
            part, num_bytes = [], 0
        part.append(row)
        num_bytes += size
    if part:
        yield part
