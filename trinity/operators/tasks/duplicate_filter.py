"""Leaves out duplicate tasks."""

import hashlib

from trinity.operators.tasks.spool import DIGEST_BYTES, SeenDigests
from trinity.operators.tasks.task_rows import TaskChanges, TaskRows


def duplicate_filter(tasks: TaskRows, *, columns: list[str]) -> TaskChanges:
    """Compares tasks by the texts of these columns; the first of equal tasks stays."""
    if "seen" not in tasks.memory:
        tasks.memory["seen"] = SeenDigests()
    seen: SeenDigests = tasks.memory["seen"]
    digests = [
        _digest([tasks.text(i, column).strip() for column in columns])
        for i in range(len(tasks.rows))
    ]
    reason = f"its {', '.join(columns)} was there before"
    return TaskChanges(left_out=seen.add_digests(digests), reason=reason)


def _digest(texts: list[str]) -> bytes:
    hashed = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for text in texts:
        encoded = text.encode(errors="surrogatepass")
        hashed.update(len(encoded).to_bytes(8, "big") + encoded)
    return hashed.digest()
