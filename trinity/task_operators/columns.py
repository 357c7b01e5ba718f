"""Numbers, one a row, whose memory is a file: as many as there are rows, and little memory."""

import os
import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[Any]
PART_ROWS = 65_536
"""Rows that are worked on at once."""


def on_disk(size: int, dtype: npt.DTypeLike) -> Numbers:
    """Zeros in a file without a name, which is gone when nobody holds them any more.

    The system keeps of them in memory what it has room for. Raises: OSError on a full disk, now
    and not when they are written.
    """
    kind = np.dtype(dtype)
    with tempfile.TemporaryFile() as file:
        os.posix_fallocate(file.fileno(), 0, max(size, 1) * kind.itemsize)
        return np.asarray(np.memmap(file, kind, "r+", shape=max(size, 1)))[:size]


def parts_of(size: int) -> Iterator[slice]:
    """The places of so many rows, some at a time."""
    for first in range(0, size, PART_ROWS):
        yield slice(first, min(first + PART_ROWS, size))


class Column:
    """Numbers that grow with the rows.

    column = Column("<i8")
    column.extend(np.arange(3))
    column.values[1]
    """

    def __init__(self, dtype: npt.DTypeLike) -> None:
        self._room = on_disk(PART_ROWS, dtype)
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def extend(self, values_N: Numbers) -> None:
        """Add some more."""
        size = self._size + len(values_N)
        if size > len(self._room):
            larger = on_disk(max(size, 2 * len(self._room)), self._room.dtype)
            larger[: self._size] = self.values
            self._room = larger
        self._room[self._size : size] = values_N
        self._size = size

    @property
    def values(self) -> Numbers:
        """All of them; what is added later may not be seen in it."""
        return self._room[: self._size]
