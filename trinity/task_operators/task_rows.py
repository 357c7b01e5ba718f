"""What a task operator is given and what it gives.

@TASK_OPERATORS.register_module("no_sums_with_zero")
def no_sums_with_zero(tasks: TaskRows, *, column: str = "question") -> TaskChanges:
    left_out_N = np.array(["0" in str(row[column]) for row in tasks.rows])
    return TaskChanges(left_out=left_out_N, reason="it has a zero")
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from trinity.errors import UserError
from trinity.json_values import JsonValue

FloatVector = npt.NDArray[np.floating[Any]]
BoolVector = npt.NDArray[np.bool_]
Row = Mapping[str, JsonValue]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRows:
    """Rows that follow one another; a taskset comes in many such parts, in its order."""

    rows: Sequence[Row]
    """Columns by name, [N]."""
    scores: Mapping[str, FloatVector] = field(default_factory=dict)
    """What operators before this one have measured, by name, [N] each."""
    memory: dict[str, Any] = field(default_factory=dict)
    """The operator's own, empty at the first rows and kept to the last."""

    def numbers(self, column: str) -> FloatVector:
        """A column, or a score of that name, as numbers.

        Raises: UserError for a row that has none.
        """
        if column in self.scores:
            return self.scores[column]
        return np.array([_number(row, column) for row in self.rows], dtype=np.float64)

    def text(self, place: int, column: str) -> str:
        """A column of one row as text, empty where it is null.

        Raises: UserError when the row lacks it.
        """
        value = _value(self.rows[place], column)
        return "" if value is None else str(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskChanges:
    """What becomes of N rows; what is not given stays as it is."""

    left_out: BoolVector | None = None
    """Which rows nobody shall explore, [N]."""
    reason: str = ""
    """Why they are left out, as it is counted and shown; else the operator's name."""
    scores: Mapping[str, FloatVector] = field(default_factory=dict)
    """Measured numbers by name, [N] each; `priority_weights` orders by them."""
    rows: Sequence[Row] | None = None
    """Other rows in place of these, [N]."""


TaskOperatorFn = Callable[..., TaskChanges]


def _value(row: Row, column: str) -> JsonValue:
    if column not in row:
        raise UserError(f"the row has no column {column!r}, only {', '.join(map(repr, row))}")
    return row[column]


def _number(row: Row, column: str) -> float:
    value = _value(row, column)
    try:
        number = value if type(value) is float else float(str(value))
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise UserError(f"column {column!r} holds no number, but {value!r:.60}")
    return number
