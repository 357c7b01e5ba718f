"""Rows on the disk while their order is not known yet."""

import tempfile
from array import array
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Self


class Spool:
    """Takes rows in one order and gives them in another; in memory are 16 bytes a row.

    with Spool() as spool:
        spool.add(b"{}")
        list(spool.read([0]))
    """

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by __exit__
        self._ends = array("q", [0])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._file.close()

    def __len__(self) -> int:
        return len(self._ends) - 1

    def add(self, row: bytes) -> None:
        """Keep one more."""
        self._file.write(row)
        self._ends.append(self._ends[-1] + len(row))

    def read(self, places: Iterable[int]) -> Iterator[bytes]:
        """The rows at these places, counted from 0 in the order in which they came."""
        for place in places:
            start, end = self._ends[place], self._ends[place + 1]
            self._file.seek(start)
            yield self._file.read(end - start)
