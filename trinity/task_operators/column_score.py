"""Makes a column of numbers a score, for `priority_weights` to order by."""

from trinity.task_operators.task_rows import TaskChanges, TaskRows


def column_score(tasks: TaskRows, *, column: str, score: str = "") -> TaskChanges:
    """The score is called like the column unless `score` names it."""
    return TaskChanges(scores={score or column: tasks.numbers(column)})
