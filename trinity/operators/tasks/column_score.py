"""Turns a column of numbers into a score, for ordering by `priority_weights`."""

from trinity.operators.tasks.task_rows import TaskChanges, TaskRows


def column_score(tasks: TaskRows, *, column: str, score: str = "") -> TaskChanges:
    """Names the score after the column unless `score` is given."""
    return TaskChanges(scores={score or column: tasks.numbers(column)})
