"""Columns of numbers, one per row, that are stored in files and so need little memory."""

import os
import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[Any]
PART_ROWS = 65_536
"""Rows that are processed at once."""


def on_disk(size: int, dtype: npt.DTypeLike) -> Numbers:
    """Returns zeros in an unnamed file, which is removed with the last reference to them.

    The system caches as much of them in memory as it has room for. Raises: OSError on a full disk,
    now and not when they are written.
    """
    kind = np.dtype(dtype)
    with tempfile.TemporaryFile() as file:
        os.posix_fallocate(file.fileno(), 0, max(size, 1) * kind.itemsize)
        return np.asarray(np.memmap(file, kind, "r+", shape=max(size, 1)))[:size]


def parts_of(size: int) -> Iterator[slice]:
    """Yields the indices of `size` rows, in slices of PART_ROWS."""
    for first in range(0, size, PART_ROWS):
        yield slice(first, min(first + PART_ROWS, size))


class Column:
    """A growing column of numbers.

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
        """Appends numbers."""
        size = self._size + len(values_N)
        if size > len(self._room):
            larger = on_disk(max(size, 2 * len(self._room)), self._room.dtype)
            larger[: self._size] = self.values
            self._room = larger
        self._room[self._size : size] = values_N
        self._size = size

    @property
    def values(self) -> Numbers:
        """All numbers; those appended later may be missing from this view."""
        return self._room[: self._size]
