"""Leaves out tasks whose number in a column is too small or too large."""

import numpy as np

from trinity.operators.tasks.task_rows import TaskChanges, TaskRows


def number_filter(
    tasks: TaskRows, *, column: str, at_least: float | None = None, at_most: float | None = None
) -> TaskChanges:
    """Compares numbers of `column`, which may be a score of an earlier operator."""
    numbers_N = tasks.numbers(column)
    least = -np.inf if at_least is None else at_least
    most = np.inf if at_most is None else at_most
    left_out_N = (numbers_N < least) | (numbers_N > most)
    return TaskChanges(left_out=left_out_N, reason=f"{column} is not in {least:g}..{most:g}")
