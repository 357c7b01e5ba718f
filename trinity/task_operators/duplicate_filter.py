"""Leaves out tasks that were there before."""

import hashlib

import numpy as np

from trinity.task_operators.task_rows import TaskChanges, TaskRows

DIGEST_BYTES = 16


def duplicate_filter(tasks: TaskRows, *, columns: list[str]) -> TaskChanges:
    """A task is known by the texts of these columns; the first one of the same stays."""
    seen: set[bytes] = tasks.memory.setdefault("seen", set())
    left_out_N = np.zeros(len(tasks.rows), dtype=np.bool_)
    for i in range(len(tasks.rows)):
        digest = _digest([tasks.text(i, column).strip() for column in columns])
        left_out_N[i] = digest in seen
        seen.add(digest)
    return TaskChanges(left_out=left_out_N, reason=f"its {', '.join(columns)} was there before")


def _digest(texts: list[str]) -> bytes:
    hashed = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for text in texts:
        encoded = text.encode(errors="surrogatepass")
        hashed.update(len(encoded).to_bytes(8, "big") + encoded)
    return hashed.digest()
