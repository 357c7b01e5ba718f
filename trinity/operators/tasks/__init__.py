"""Task operators by name, which process the rows of a taskset before they are explored."""

from typing import TYPE_CHECKING

from trinity.plugins import Registry

if TYPE_CHECKING:
    from trinity.operators.tasks.task_rows import TaskOperatorFn

_HERE = "trinity.operators.tasks"
BUILT_IN = {
    name: f"{_HERE}.{name}.{name}"
    for name in (
        "column_score",
        "data_juicer",
        "duplicate_filter",
        "length_filter",
        "number_filter",
    )
}
"""Operators of this package by name; any other name is a user's."""

TASK_OPERATORS: "Registry[TaskOperatorFn]" = Registry("task operator", BUILT_IN)
