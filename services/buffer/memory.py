"""Has large blocks of memory go back to the system as soon as nobody needs them."""

import ctypes

M_MMAP_THRESHOLD = -3
LARGE_BYTES = 2 * 1024 * 1024


def give_large_blocks_back() -> None:
    """Blocks of this size get a mapping of their own, whatever was freed before.

    By itself glibc takes ever larger ones out of its heaps, of which each thread has one, and holes
    in a heap stay with the process. Elsewhere than with glibc nothing happens.
    """
    try:
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)
    except (AttributeError, OSError):
        return
