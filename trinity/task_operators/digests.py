"""A set of digests in a file, so that memory does not grow with it."""

import numpy as np
import numpy.typing as npt

from trinity.task_operators.columns import PART_ROWS, on_disk

DIGEST_BYTES = 16
WORDS = 2
Digests = npt.NDArray[np.uint64]
BoolVector = npt.NDArray[np.bool_]


class SeenDigests:
    """A hash table with open addressing, at most half full; a digest is two words, [N, 2].

    seen = SeenDigests()
    seen.add([b"0123456789abcdef"])     # [False]
    """

    def __init__(self, num_slots: int = PART_ROWS) -> None:
        self._slots = _table(num_slots)
        self._count = 0

    def add(self, digests: list[bytes]) -> BoolVector:
        """Adds digests; returns true for those seen before, among these or earlier."""
        words_N2 = np.frombuffer(b"".join(digests), dtype=np.uint64).reshape(-1, WORDS).copy()
        words_N2[:, 0] |= np.uint64(1)  # a free slot has 0 here
        while 2 * (self._count + len(words_N2)) > len(self._slots):
            self._grow()
        was_there_N = _repeated(words_N2)
        first_K = np.flatnonzero(~was_there_N)
        was_there_N[first_K] = self._enter(words_N2[first_K])
        self._count += int((~was_there_N).sum())
        return was_there_N

    def _enter(self, words_K2: Digests) -> BoolVector:
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
            self._enter(part[part[:, 0] != 0])


def _table(num_slots: int) -> Digests:
    table: Digests = on_disk(num_slots * WORDS, np.uint64).reshape(num_slots, WORDS)
    return table


def _repeated(words_N2: Digests) -> BoolVector:
    """Returns true for all but the first of equal digests."""
    order = np.lexsort((words_N2[:, 1], words_N2[:, 0]))
    is_same = (words_N2[order[1:]] == words_N2[order[:-1]]).all(axis=1)
    repeated_N = np.zeros(len(words_N2), dtype=np.bool_)
    repeated_N[order[1:][is_same]] = True
    return repeated_N
