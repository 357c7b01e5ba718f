"""Tunes malloc so that large blocks are returned to the system when freed."""

import ctypes

M_MMAP_THRESHOLD = -3
LARGE_BYTES = 2 * 1024 * 1024


def give_large_blocks_back() -> None:
    """Fixes the mmap threshold, so that every large block gets its own mapping.

    By default glibc raises the threshold and takes ever larger blocks from its per-thread heaps,
    whose holes stay with the process. Without glibc this does nothing.
    """
    try:
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)
    except (AttributeError, OSError):
        return
