"""Columns of numbers, digests and rows that are stored in files and so need little memory.

A task pipeline needs all scores before it knows the first task. Mapped files count against no limit
of the process, so a million rows take the memory of a hundred thousand.
"""

import os
import tempfile
from collections.abc import Iterator, Sequence
from itertools import pairwise
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

NumberArray = npt.NDArray[Any]
PART_ROWS = 65_536
"""Rows that are processed at once."""
DIGEST_BYTES = 16
WORDS = 2
Digests = npt.NDArray[np.uint64]
BoolVector = npt.NDArray[np.bool_]
DIGIT_BITS = 16
KEY_BITS = 64
NUM_DIGITS = 1 << DIGIT_BITS
SIGN = np.uint64(1 << 63)
Keys = npt.NDArray[np.uint64]
BYTES_AT_ONCE = 256 * 1024


def disk_zeros(size: int, dtype: npt.DTypeLike) -> NumberArray:
    """Returns zeros in an unnamed file, which is removed with the last reference to them.

    The system caches as much of them in memory as it has room for. Raises: OSError on a full disk,
    now and not when they are written.
    """
    kind = np.dtype(dtype)
    with tempfile.TemporaryFile() as file:
        os.posix_fallocate(file.fileno(), 0, max(size, 1) * kind.itemsize)
        return np.asarray(np.memmap(file, kind, "r+", shape=max(size, 1)))[:size]


def slices(size: int) -> Iterator[slice]:
    """Yields the indices of `size` rows, in slices of PART_ROWS."""
    for first in range(0, size, PART_ROWS):
        yield slice(first, min(first + PART_ROWS, size))


class SpoolColumn:
    """A growing column of numbers.

    column = SpoolColumn("<i8")
    column.extend(np.arange(3))
    column.values[1]
    """

    def __init__(self, dtype: npt.DTypeLike) -> None:
        self._room = disk_zeros(PART_ROWS, dtype)
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def extend(self, values_N: NumberArray) -> None:
        """Appends numbers."""
        size = self._size + len(values_N)
        if size > len(self._room):
            larger = disk_zeros(max(size, 2 * len(self._room)), self._room.dtype)
            larger[: self._size] = self.values
            self._room = larger
        self._room[self._size : size] = values_N
        self._size = size

    @property
    def values(self) -> NumberArray:
        """All numbers; those appended later may be missing from this view."""
        return self._room[: self._size]


class SeenDigests:
    """A hash table with open addressing, at most half full; a digest is two words, [N, 2].

    seen = SeenDigests()
    seen.add_digests([b"0123456789abcdef"])     # [False]
    """

    def __init__(self, num_slots: int = PART_ROWS) -> None:
        self._slots = _table(num_slots)
        self._count = 0

    def add_digests(self, digests: list[bytes]) -> BoolVector:
        """Adds digests; returns true for those seen before, among these or earlier."""
        words_N2 = np.frombuffer(b"".join(digests), dtype=np.uint64).reshape(-1, WORDS).copy()
        words_N2[:, 0] |= np.uint64(1)  # a free slot has 0 here
        while 2 * (self._count + len(words_N2)) > len(self._slots):
            self._grow()
        was_there_N = _is_duplicate(words_N2)
        first_K = np.flatnonzero(~was_there_N)
        was_there_N[first_K] = self._insert(words_N2[first_K])
        self._count += int((~was_there_N).sum())
        return was_there_N

    def _insert(self, words_K2: Digests) -> BoolVector:
        """Enters distinct digests; returns true for those that were in the table before."""
        was_there_K = np.zeros(len(words_K2), dtype=np.bool_)
        mask = len(self._slots) - 1
        left = np.arange(len(words_K2))
        slots = (words_K2[:, 0] >> np.uint64(1)).astype(np.int64) & mask
        while len(left):
            wanted = words_K2[left]
            is_own = (self._slots[slots] == wanted).all(axis=1)
            was_there_K[left[is_own]] = True
            is_free = self._slots[slots, 0] == 0
            self._slots[slots[is_free]] = wanted[is_free]
            # If several digests take the same slot, one gets it and the others probe on.
            is_placed = (self._slots[slots] == wanted).all(axis=1)
            left, slots = left[~is_placed], (slots[~is_placed] + 1) & mask
        return was_there_K

    def _grow(self) -> None:
        before, self._slots = self._slots, _table(2 * len(self._slots))
        for first in range(0, len(before), PART_ROWS):
            part = before[first : first + PART_ROWS]
            self._insert(part[part[:, 0] != 0])


def _table(num_slots: int) -> Digests:
    table: Digests = disk_zeros(num_slots * WORDS, np.uint64).reshape(num_slots, WORDS)
    return table


def _is_duplicate(words_N2: Digests) -> BoolVector:
    """Returns true for all but the first of equal digests."""
    order = np.lexsort((words_N2[:, 1], words_N2[:, 0]))
    is_same = (words_N2[order[1:]] == words_N2[order[:-1]]).all(axis=1)
    repeated_N = np.zeros(len(words_N2), dtype=np.bool_)
    repeated_N[order[1:][is_same]] = True
    return repeated_N


def sortable_keys(numbers_N: npt.NDArray[np.float64]) -> Keys:
    """Returns integers in the same order, equal where the numbers are; NaN comes last."""
    plain_N = np.where(np.isnan(numbers_N), np.nan, numbers_N) + 0.0  # a single NaN, and no -0.0
    bits_N = plain_N.view(np.uint64)
    keys_N: Keys = np.where(bits_N & SIGN, ~bits_N, bits_N | SIGN)
    return keys_N


def disk_arange(size: int) -> NumberArray:
    """Returns 0, 1, 2 and so on, stored on disk."""
    places_N = disk_zeros(size, np.int64)
    for part in slices(size):
        places_N[part] = np.arange(part.start, part.stop)
    return places_N


def argsort_on_disk(keys_N: Keys) -> NumberArray:
    """Returns the indices of the keys in rising order (stable); overwrites the keys."""
    places_N = disk_arange(len(keys_N))
    other_keys_N, other_places_N = (
        disk_zeros(len(keys_N), np.uint64),
        disk_zeros(len(keys_N), np.int64),
    )
    for shift in range(0, KEY_BITS, DIGIT_BITS):
        counts = _counts(keys_N, shift)
        if counts.max() == len(keys_N):
            continue
        free = np.cumsum(counts) - counts
        for part in slices(len(keys_N)):
            digits = _digits(keys_N[part], shift)
            order = np.argsort(digits, kind="stable")
            rising = digits[order]
            ranks = np.arange(len(rising)) - np.searchsorted(rising, rising)
            to = free[rising] + ranks
            other_keys_N[to] = keys_N[part][order]
            other_places_N[to] = places_N[part][order]
            free += np.bincount(digits, minlength=NUM_DIGITS)
        keys_N, other_keys_N = other_keys_N, keys_N
        places_N, other_places_N = other_places_N, places_N
    return places_N


def _counts(keys_N: Keys, shift: int) -> npt.NDArray[np.int64]:
    counts = np.zeros(NUM_DIGITS, dtype=np.int64)
    for part in slices(len(keys_N)):
        counts += np.bincount(_digits(keys_N[part], shift), minlength=NUM_DIGITS)
    return counts


def _digits(keys: Keys, shift: int) -> npt.NDArray[np.uint16]:
    return (keys >> np.uint64(shift)).astype(np.uint16)


class RowSpool:
    """Takes rows in one order and returns them in another; rows and offsets are kept on disk.

    with RowSpool() as spool:
        spool.extend([b"{}"])
        list(spool.read(np.array([0])))
    """

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by __exit__
        self._ends = SpoolColumn(np.int64)
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

    def read(self, places: NumberArray) -> Iterator[tuple[NumberArray, list[bytes]]]:
        """Yields the rows at these places, counted from 0 as they came, in batches with places."""
        self._file.flush()
        descriptor, ends = self._file.fileno(), self._ends.values
        for part in slices(len(places)):
            own = places[part]
            starts, lengths = ends[own], ends[own + 1] - ends[own]
            for first, end in pairwise(_cuts(lengths)):
                at = zip(lengths[first:end].tolist(), starts[first:end].tolist(), strict=True)
                yield own[first:end], [os.pread(descriptor, size, start) for size, start in at]


def _cuts(lengths: NumberArray) -> list[int]:
    """Returns boundaries of batches of at most BYTES_AT_ONCE, unless a single row is larger."""
    ends = np.cumsum(lengths)
    cuts = [0]
    while cuts[-1] < len(lengths):
        before = ends[cuts[-1] - 1] if cuts[-1] else 0
        end = int(np.searchsorted(ends, before + BYTES_AT_ONCE, side="right"))
        cuts.append(max(end, cuts[-1] + 1))
    return cuts
