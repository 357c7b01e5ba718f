"""Task operators that a test's pipeline calls."""

import os
import signal
import time
from pathlib import Path

import numpy as np

from trinity.operators.tasks.task_rows import TaskChanges, TaskRows


def odd_ones(tasks: TaskRows) -> TaskChanges:
    left_out_N = np.array([int(str(row["number"])) % 2 == 0 for row in tasks.rows])
    return TaskChanges(left_out=left_out_N, reason="it is even")


def sleeps(tasks: TaskRows, *, seconds: float) -> TaskChanges:
    time.sleep(seconds)
    return TaskChanges(rows=tasks.rows)


def swallows(tasks: TaskRows) -> TaskChanges:
    tasks.memory["all"] = np.ones(400_000_000)
    return TaskChanges()


def dies(tasks: TaskRows, *, times: int, file: str) -> TaskChanges:
    """Ends its process so often."""
    deaths = Path(file)
    before = len(deaths.read_text()) if deaths.exists() else 0
    if before < times:
        deaths.write_text("x" * (before + 1))
        os.kill(os.getpid(), signal.SIGKILL)
    return TaskChanges(rows=tasks.rows)
