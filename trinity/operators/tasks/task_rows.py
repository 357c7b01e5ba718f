"""Input and result of task operators.

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
from trinity.runtime.json_values import JsonValue
from trinity.user_code.columns import column_value, has_column

FloatVector = npt.NDArray[np.floating[Any]]
BoolVector = npt.NDArray[np.bool_]
Row = Mapping[str, JsonValue]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRows:
    """Consecutive rows; a taskset comes in many such parts, in its order."""

    rows: Sequence[Row]
    """Columns by name, [N]."""
    scores: Mapping[str, FloatVector] = field(default_factory=dict)
    """Scores that earlier operators measured, by name, [N] each."""
    memory: dict[str, Any] = field(default_factory=dict)
    """State of the operator, empty at the first rows and kept until the last."""

    def numbers(self, column: str) -> FloatVector:
        """Returns a column, or a score of that name, as numbers.

        Raises: UserError for a row without one.
        """
        if column in self.scores:
            return self.scores[column]
        return np.array([_number(row, column) for row in self.rows], dtype=np.float64)

    def text(self, place: int, column: str) -> str:
        """Returns a column of one row as text, empty if it is null.

        Raises: UserError when the row lacks it.
        """
        value = _value(self.rows[place], column)
        return "" if value is None else str(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskChanges:
    """Changes to N rows; fields that are not given are ignored."""

    left_out: BoolVector | None = None
    """True for rows that must not be explored, [N]."""
    reason: str = ""
    """Reason why they are left out, for counts and display; the operator's name if empty."""
    scores: Mapping[str, FloatVector] = field(default_factory=dict)
    """Measured numbers by name, [N] each; `priority_weights` orders by them."""
    rows: Sequence[Row] | None = None
    """Rows that replace the input rows, [N]."""


TaskOperatorFn = Callable[..., TaskChanges]


def _value(row: Row, column: str) -> JsonValue:
    if not has_column(row, column):
        raise UserError(f"the row has no column {column!r}, only {', '.join(map(repr, row))}")
    return column_value(row, column)


def _number(row: Row, column: str) -> float:
    value = _value(row, column)
    try:
        number = value if type(value) is float else float(str(value))
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise UserError(f"column {column!r} holds no number, but {value!r:.60}")
    return number
