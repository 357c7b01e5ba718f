"""Leaves out tasks with a text that is too short or too long."""

import numpy as np

from trinity.operators.tasks.task_rows import TaskChanges, TaskRows


def length_filter(
    tasks: TaskRows, *, column: str, at_least: int = 1, at_most: int | None = None
) -> TaskChanges:
    """Compares lengths in characters, without surrounding white space."""
    places = range(len(tasks.rows))
    lengths_N = np.array([len(tasks.text(i, column).strip()) for i in places], dtype=np.int64)
    left_out_N = lengths_N < at_least
    if at_most is not None:
        left_out_N |= lengths_N > at_most
    most = "" if at_most is None else at_most
    return TaskChanges(
        left_out=left_out_N, reason=f"the length of {column} is not in {at_least}..{most}"
    )
