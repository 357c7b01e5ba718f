"""Runs a task pipeline: its operators over all rows, then the order of those that remain."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from trinity.data.rows import row_name
from trinity.errors import Unavailable, UserError
from trinity.operators.tasks import TASK_OPERATORS
from trinity.operators.tasks.spool import (
    Keys,
    RowSpool,
    SpoolColumn,
    argsort_on_disk,
    disk_arange,
    disk_zeros,
    slices,
    sortable_keys,
)
from trinity.operators.tasks.task_pipeline import Ordering, ResolvedTaskPipeline, TaskOperator
from trinity.operators.tasks.task_rows import FloatVector, Row, TaskChanges, TaskRows

IntVector = npt.NDArray[np.int64]
DEFAULT_WEIGHTS = {"difficulty": -0.7, "diversity": 0.8, "usage_frequency": -0.5, "quality": 1.0}
"""Trinity-RFT's weights; one without a measured score has no effect."""
MEASURES: Mapping[str, Mapping[str, int]] = {
    "quality": {
        "alnum_ratio": 1,
        "char_rep_ratio": -1,
        "flagged_words_ratio": -1,
        "special_char_ratio": -1,
        "stopwords_ratio": 1,
        "word_rep_ratio": -1,
        "llm_quality_score": 1,
    },
    "difficulty": {"perplexity": 1, "lang_score": -1, "llm_difficulty_score": 1},
    "usage_frequency": {"consumed_cnt": 1},
    "diversity": {},
}
"""Data-Juicer statistics averaged for each score, -1 where less is better; from Trinity-RFT."""
MAX_REASONS = 100
OTHER_REASONS = "other reasons"
_ENCODER = json.JSONEncoder(allow_nan=False)
CallGuard = Callable[[TaskOperator], AbstractContextManager[None]]
"""Context manager that is entered for each call."""


def effective_weights(ordering: Ordering, names: set[str]) -> dict[str, float]:
    """Returns the weights of measured scores.

    Raises: UserError for a requested weight whose score no operator measured; of Trinity-RFT's own
        scores, one measured score is enough.
    """
    weights = ordering.priority_weights or DEFAULT_WEIGHTS
    used = {name: weight for name, weight in weights.items() if _measures(name, names)}
    known = ", ".join(sorted(names)) or "none"
    for name in weights:
        if name not in used and name not in MEASURES:
            raise UserError(
                f"`priority_weights.{name}` is measured by no operator: the scores are {known}"
            )
    if ordering.priority_weights and not used:
        requested = ", ".join(f"`priority_weights.{name}`" for name in weights)
        raise UserError(f"no operator measures {requested}: the scores are {known}")
    return used


def ordered_indices(
    ordering: Ordering, scores: Mapping[str, FloatVector], weights: Mapping[str, float], size: int
) -> IntVector:
    """Returns the indices of the kept tasks in their order, [K]; stored on disk."""
    if ordering.method == "keep":
        return _top_k(disk_arange(size), ordering.top_k)
    if ordering.method == "shuffle":
        places_N = disk_arange(size)
        np.random.Generator(np.random.PCG64(ordering.seed % 2**64)).shuffle(places_N)
        return _top_k(places_N, ordering.top_k)
    best_K = _top_k(argsort_on_disk(_keys(scores, weights, size)), ordering.top_k)
    return (
        best_K if ordering.method == "sort" else _interleave_layers(best_K, ordering.folding_layers)
    )


def _keys(scores: Mapping[str, FloatVector], weights: Mapping[str, float], size: int) -> Keys:
    """Returns sort keys, which rise as priorities fall."""
    bounds = {name: _bounds(score_N) for name, score_N in scores.items()}
    keys_N = disk_zeros(size, np.uint64)
    for part in slices(size):
        normalized = {name: _normalized(scores[name][part], bounds[name]) for name in scores}
        priorities = np.zeros(part.stop - part.start)
        for name, weight in weights.items():
            priorities += weight * _score(name, normalized)
        keys_N[part] = sortable_keys(-priorities)
    return keys_N


def _interleave_layers(best_K: IntVector, num_layers: int) -> IntVector:
    folded_K = disk_zeros(len(best_K), np.int64)
    first = 0
    for layer in range(num_layers):
        own = best_K[layer::num_layers]
        folded_K[first : first + len(own)] = own
        first += len(own)
    return folded_K


def _top_k(places_N: IntVector, top_k: int) -> IntVector:
    return places_N if top_k < 0 else places_N[:top_k]


def _measures(name: str, names: set[str]) -> dict[str, int]:
    """Returns the measured statistics of a score with their signs; a score of that name wins."""
    if name in names:
        return {name: 1}
    return {stat: sign for stat, sign in MEASURES.get(name, {}).items() if stat in names}


def _score(name: str, normalized: Mapping[str, FloatVector]) -> FloatVector:
    """Returns the mean of its measured statistics, each from 0 to 1."""
    measures = _measures(name, set(normalized))
    parts = [normalized[s] if sign > 0 else 1 - normalized[s] for s, sign in measures.items()]
    mean_N: FloatVector = np.mean(parts, axis=0)
    return mean_N


def _bounds(score_N: FloatVector) -> tuple[float, float]:
    """Returns minimum and maximum; both 0 if there is no finite value."""
    least, most, any_finite = np.nan, np.nan, False
    for part in slices(len(score_N)):
        own = score_N[part]
        any_finite |= bool(np.isfinite(own).any())
        least, most = np.fmin(least, np.fmin.reduce(own)), np.fmax(most, np.fmax.reduce(own))
    return (float(least), float(most)) if any_finite else (0.0, 0.0)


def _normalized(score_N: FloatVector, bounds: tuple[float, float]) -> FloatVector:
    """Scales scores from 0, the minimum, to 1, the maximum; missing ones become 0."""
    least, most = bounds
    if least == most:
        return np.zeros(len(score_N))
    normalized_N: FloatVector = np.nan_to_num((score_N - least) / (most - least))
    return normalized_N


@dataclass(slots=True)
class _RowBatch:
    """The remaining rows of one part of the input."""

    numbers: IntVector
    """Indices of the rows in the source, from 0."""
    rows: Sequence[Row]
    scores: dict[str, FloatVector]

    def select(self, left_out_N: Any) -> "_RowBatch":
        indices = np.flatnonzero(~left_out_N)
        return _RowBatch(
            numbers=self.numbers[indices],
            rows=[self.rows[i] for i in indices],
            scores={name: score_N[indices] for name, score_N in self.scores.items()},
        )


@dataclass(slots=True)
class TaskPipelineRunner:
    """Takes rows part by part; returns the remaining ones after the last part.

    runner = TaskPipelineRunner(pipeline, spool, call_guard)
    runner.process([{"question": "1+1="}])
    for numbers, rows in runner.iterate_ordered(): ...
    """

    pipeline: ResolvedTaskPipeline
    spool: RowSpool
    call_guard: CallGuard
    num_read: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    ordered_by: dict[str, float] = field(default_factory=dict)
    """The weights that determined the order."""
    _numbers: SpoolColumn = field(default_factory=lambda: SpoolColumn(np.int64))
    _scores: dict[str, SpoolColumn] = field(default_factory=dict)
    _memories: dict[int, dict[str, Any]] = field(default_factory=dict)

    def process(self, rows: Sequence[Row]) -> None:
        """Processes the next rows.

        Raises: UserError naming the operator and the rows that it failed on, Unavailable when a
        service that it needs does not answer.
        """
        first = self.num_read
        self.num_read += len(rows)
        part = _RowBatch(np.arange(first, self.num_read), rows, {})
        for place, operator in enumerate(self.pipeline.operators):
            if part.rows:
                part = self._apply(place, operator, part)
        self._keep(part)

    def iterate_ordered(self) -> Iterator[tuple[IntVector, list[bytes]]]:
        """Yields the remaining rows in batches, each with its index in the source."""
        scores = {name: column.values for name, column in self._scores.items()}
        ordering = self.pipeline.ordering
        self.ordered_by = {}
        if ordering.method in ("sort", "folding") and len(self.spool):
            self.ordered_by = effective_weights(ordering, set(scores))
        places_K = ordered_indices(ordering, scores, self.ordered_by, len(self.spool))
        if cut := len(self.spool) - len(places_K):
            self.left_out[f"top_k: beyond the first {ordering.top_k}"] += cut
        numbers = self._numbers.values
        for places, rows in self.spool.read(places_K):
            yield numbers[places], rows

    def _apply(self, place: int, operator: TaskOperator, part: _RowBatch) -> _RowBatch:
        memory = self._memories.setdefault(place, {})
        tasks = TaskRows(rows=part.rows, scores=part.scores, memory=memory)
        try:
            with self.call_guard(operator):
                function = TASK_OPERATORS.get(operator.name)
                changes = _validate_changes(function(tasks, **operator.args), len(part.rows))
        except (UserError, Unavailable) as error:
            raise type(error)(f"{_where(operator, part)}: {error}") from error
        except MemoryError:
            raise
        except Exception as error:  # whatever a user's function raises
            raise UserError(f"{_where(operator, part)}: {type(error).__name__}: {error}") from error
        part = _RowBatch(part.numbers, changes.rows or part.rows, {**part.scores, **changes.scores})
        if changes.left_out is None or not changes.left_out.any():
            return part
        reason = f"{operator.name}: {changes.reason}" if changes.reason else operator.name
        self._leave_out(reason, int(changes.left_out.sum()))
        return part.select(changes.left_out)

    def _leave_out(self, reason: str, count: int) -> None:
        is_known = reason in self.left_out or len(self.left_out) < MAX_REASONS
        self.left_out[reason if is_known else OTHER_REASONS] += count

    def _keep(self, part: _RowBatch) -> None:
        before = len(self.spool)
        self.spool.extend([self._text(part, place) for place in range(len(part.rows))])
        self._numbers.extend(part.numbers)
        self._add_scores(part.scores, before, len(part.rows))

    def _text(self, part: _RowBatch, place: int) -> bytes:
        """Serializes a row with its kept columns and added scores."""
        row, number = part.rows[place], int(part.numbers[place])
        fields = self.pipeline.target_fields
        if missing := [name for name in fields if name not in row]:
            raise UserError(
                f"{row_name(number)} "
                f"has no column {missing[0]!r}, which `target_fields` names, only "
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
                self._scores[name] = SpoolColumn(np.float64)
                for part in slices(before):
                    self._scores[name].extend(np.full(part.stop - part.start, np.nan))
            score_N = scores[name] if name in scores else np.full(count, np.nan)
            self._scores[name].extend(score_N)


def _where(operator: TaskOperator, part: _RowBatch) -> str:
    first, last = int(part.numbers[0]), int(part.numbers[-1])
    return f"task operator {operator.name}, rows {first} to {last}"


def _json(row: Row, number: int) -> bytes:
    try:
        return _ENCODER.encode(row).encode()
    except (TypeError, ValueError) as error:
        raise UserError(
            f"{row_name(number)}: what operators made of it is no JSON: {error}"
        ) from error


def _validate_changes(changes: object, size: int) -> TaskChanges:
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
