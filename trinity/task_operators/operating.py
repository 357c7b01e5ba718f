"""Applies a taskset's operators to its rows, and returns the remaining rows in order."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trinity.errors import Unavailable, UserError
from trinity.task_operators import TASK_OPERATORS
from trinity.task_operators.columns import Column, parts_of
from trinity.task_operators.ordering import IntVector, order_of, used_weights
from trinity.task_operators.spool import Spool
from trinity.task_operators.task_pipeline import ResolvedTaskPipeline, TaskOperator
from trinity.task_operators.task_rows import FloatVector, Row, TaskChanges, TaskRows

MAX_REASONS = 100
OTHER_REASONS = "other reasons"
_ENCODER = json.JSONEncoder(allow_nan=False)

Calling = Callable[[TaskOperator], AbstractContextManager[None]]
"""Context manager that is entered for each call."""


@dataclass(slots=True)
class _Part:
    """The remaining rows of one part of the input."""

    numbers: IntVector
    """Indices of the rows in the source, from 0."""
    rows: Sequence[Row]
    scores: dict[str, FloatVector]

    def kept(self, left_out_N: Any) -> "_Part":
        indices = np.flatnonzero(~left_out_N)
        return _Part(
            numbers=self.numbers[indices],
            rows=[self.rows[i] for i in indices],
            scores={name: score_N[indices] for name, score_N in self.scores.items()},
        )


@dataclass(slots=True)
class Operating:
    """Takes rows part by part; returns the remaining ones after the last part.

    operating = Operating(pipeline, spool, calling)
    operating.take([{"question": "1+1="}])
    for numbers, rows in operating.ordered(): ...
    """

    pipeline: ResolvedTaskPipeline
    spool: Spool
    calling: Calling
    num_read: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    ordered_by: dict[str, float] = field(default_factory=dict)
    """The weights that determined the order."""
    _numbers: Column = field(default_factory=lambda: Column(np.int64))
    _scores: dict[str, Column] = field(default_factory=dict)
    _memories: dict[int, dict[str, Any]] = field(default_factory=dict)

    def take(self, rows: Sequence[Row]) -> None:
        """Processes the next rows.

        Raises: UserError naming the operator and the rows that it failed on, Unavailable when a
        service that it needs does not answer.
        """
        first = self.num_read
        self.num_read += len(rows)
        part = _Part(np.arange(first, self.num_read), rows, {})
        for place, operator in enumerate(self.pipeline.operators):
            if part.rows:
                part = self._operated(place, operator, part)
        self._keep(part)

    def ordered(self) -> Iterator[tuple[IntVector, list[bytes]]]:
        """Yields the remaining rows in batches, each with its index in the source."""
        scores = {name: column.values for name, column in self._scores.items()}
        ordering = self.pipeline.ordering
        self.ordered_by = {}
        if ordering.method in ("sort", "folding") and len(self.spool):
            self.ordered_by = used_weights(ordering, set(scores))
        places_K = order_of(ordering, scores, self.ordered_by, len(self.spool))
        if cut := len(self.spool) - len(places_K):
            self.left_out[f"top_k: beyond the first {ordering.top_k}"] += cut
        numbers = self._numbers.values
        for places, rows in self.spool.read(places_K):
            yield numbers[places], rows

    def _operated(self, place: int, operator: TaskOperator, part: _Part) -> _Part:
        memory = self._memories.setdefault(place, {})
        tasks = TaskRows(rows=part.rows, scores=part.scores, memory=memory)
        try:
            with self.calling(operator):
                function = TASK_OPERATORS.get(operator.name)
                changes = _checked(function(tasks, **operator.args), len(part.rows))
        except (UserError, Unavailable) as error:
            raise type(error)(f"{_where(operator, part)}: {error}") from error
        except MemoryError:
            raise
        except Exception as error:  # whatever a user's function raises
            raise UserError(f"{_where(operator, part)}: {type(error).__name__}: {error}") from error
        part = _Part(part.numbers, changes.rows or part.rows, {**part.scores, **changes.scores})
        if changes.left_out is None or not changes.left_out.any():
            return part
        reason = f"{operator.name}: {changes.reason}" if changes.reason else operator.name
        self._leave_out(reason, int(changes.left_out.sum()))
        return part.kept(changes.left_out)

    def _leave_out(self, reason: str, count: int) -> None:
        is_known = reason in self.left_out or len(self.left_out) < MAX_REASONS
        self.left_out[reason if is_known else OTHER_REASONS] += count

    def _keep(self, part: _Part) -> None:
        before = len(self.spool)
        self.spool.extend([self._text(part, place) for place in range(len(part.rows))])
        self._numbers.extend(part.numbers)
        self._add_scores(part.scores, before, len(part.rows))

    def _text(self, part: _Part, place: int) -> bytes:
        """Serializes a row with its kept columns and added scores."""
        row, number = part.rows[place], int(part.numbers[place])
        fields = self.pipeline.target_fields
        if missing := [name for name in fields if name not in row]:
            raise UserError(
                f"row {number} has no column {missing[0]!r}, which `target_fields` names, only "
                f"{', '.join(map(repr, row))}"
            )
        kept = {name: row[name] for name in fields} if fields else row
        scored = {
            name: float(part.scores[name][place])
            for name in self.pipeline.added_scores
            if name in part.scores and name not in kept
        }
        return _json({**kept, **scored}, number)

    def _add_scores(self, scores: Mapping[str, FloatVector], before: int, count: int) -> None:
        """Appends scores; rows without a score get NaN."""
        for name in self._scores.keys() | scores.keys():
            if name not in self._scores:
                self._scores[name] = Column(np.float64)
                for part in parts_of(before):
                    self._scores[name].extend(np.full(part.stop - part.start, np.nan))
            score_N = scores[name] if name in scores else np.full(count, np.nan)
            self._scores[name].extend(score_N)


def _where(operator: TaskOperator, part: _Part) -> str:
    first, last = int(part.numbers[0]), int(part.numbers[-1])
    return f"task operator {operator.name}, rows {first} to {last}"


def _json(row: Row, number: int) -> bytes:
    try:
        return _ENCODER.encode(row).encode()
    except (TypeError, ValueError) as error:
        raise UserError(f"row {number}: what operators made of it is no JSON: {error}") from error


def _checked(changes: object, size: int) -> TaskChanges:
    """Returns valid changes; raises UserError for a result that does not match the rows."""
    if not isinstance(changes, TaskChanges):
        raise UserError(f"it gave {type(changes).__name__}, where TaskChanges is expected")
    left_out = changes.left_out
    if left_out is not None and (left_out.shape != (size,) or left_out.dtype != np.bool_):
        raise UserError(f"`left_out` must be {size} truth values, one a row")
    for name, score_N in changes.scores.items():
        if np.shape(score_N) != (size,):
            raise UserError(f"the score {name!r} must be {size} numbers, one a row")
    if changes.rows is not None and len(changes.rows) != size:
        raise UserError(f"`rows` must be {size} rows, one in place of each: leave out others")
    return changes
