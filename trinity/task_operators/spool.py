"""Stores rows on disk until their order is known."""

import os
import tempfile
from collections.abc import Iterator, Sequence
from itertools import pairwise
from types import TracebackType
from typing import Self

import numpy as np

from trinity.task_operators.columns import Column, Numbers, parts_of

BYTES_AT_ONCE = 256 * 1024


class Spool:
    """Takes rows in one order and returns them in another; rows and offsets are kept on disk.

    with Spool() as spool:
        spool.extend([b"{}"])
        list(spool.read(np.array([0])))
    """

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by __exit__
        self._ends = Column(np.int64)
        self._ends.extend(np.zeros(1))

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

    def extend(self, rows: Sequence[bytes]) -> None:
        """Appends rows."""
        self._file.write(b"".join(rows))
        lengths = np.array([len(row) for row in rows], dtype=np.int64)
        self._ends.extend(self._ends.values[-1] + np.cumsum(lengths))

    def read(self, places: Numbers) -> Iterator[tuple[Numbers, list[bytes]]]:
        """Yields the rows at these places, counted from 0 as they came, in batches with places."""
        self._file.flush()
        descriptor, ends = self._file.fileno(), self._ends.values
        for part in parts_of(len(places)):
            own = places[part]
            starts, lengths = ends[own], ends[own + 1] - ends[own]
            for first, end in pairwise(_cuts(lengths)):
                at = zip(lengths[first:end].tolist(), starts[first:end].tolist(), strict=True)
                yield own[first:end], [os.pread(descriptor, size, start) for size, start in at]


def _cuts(lengths: Numbers) -> list[int]:
    """Returns boundaries of batches of at most BYTES_AT_ONCE, unless a single row is larger."""
    ends = np.cumsum(lengths)
    cuts = [0]
    while cuts[-1] < len(lengths):
        before = ends[cuts[-1] - 1] if cuts[-1] else 0
        end = int(np.searchsorted(ends, before + BYTES_AT_ONCE, side="right"))
        cuts.append(max(end, cuts[-1] + 1))
    return cuts
