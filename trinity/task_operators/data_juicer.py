"""Sends tasks through Data-Juicer: it filters and rewrites rows, its statistics are scores."""

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy

from trinity.data_juicer.client import DataJuicer
from trinity.errors import UserError
from trinity.json_values import JsonValue
from trinity.task_operators.task_rows import FloatVector, Row, TaskChanges, TaskRows

STATS = "__dj__stats__"
NUMBER = "__trinity_row__"
TEXT = "text"
NESTED = "nested"


def data_juicer(
    tasks: TaskRows,
    *,
    server_url: str,
    operators: list[dict[str, JsonValue]] | None = None,
    config_path: str | None = None,
    np: int = 4,
    limit_seconds: float = 120.0,
) -> TaskChanges:
    """Operators of a Data-Juicer server, by list or by a configuration file of its own.

    It is given the columns of texts, numbers and lists of texts; where none is called `text`, all
    texts together are.
    """
    pipeline = {"operators": operators, "config_path": config_path, "np": np}
    juicer = _juicer(server_url, json.dumps(pipeline, sort_keys=True), limit_seconds)
    has_text = all(TEXT in row for row in tasks.rows)
    answered = _read(juicer.process(_written(tasks.rows, has_text)))
    places_K = _places(answered, len(tasks.rows))
    left_out_N = numpy.ones(len(tasks.rows), dtype=numpy.bool_)
    left_out_N[places_K] = False
    rows = [dict(row) for row in tasks.rows]
    for place, row in zip(places_K, answered, strict=True):
        rows[place] |= {name: row[name] for name in rows[place] if name in row}
    scores = _scores(answered, places_K, len(tasks.rows))
    reason = "Data-Juicer leaves it out"
    return TaskChanges(left_out=left_out_N, reason=reason, scores=scores, rows=rows)


@lru_cache(maxsize=32)
def _juicer(url: str, pipeline: str, limit_seconds: float) -> DataJuicer:
    """The same session for all rows."""
    return DataJuicer(url, json.loads(pipeline), limit_seconds)


def _written(rows: Sequence[Row], has_text: bool) -> bytes:
    import pyarrow as pa  # weighs 40 MB, for who uses this operator

    columns: dict[str, list[JsonValue]] = {
        name: [row[name] for row in rows] for name in _plain_columns(rows)
    }
    if not has_text:
        texts = ["\n".join(v for v in row.values() if isinstance(v, str)) for row in rows]
        columns[TEXT] = list(texts)
    columns[NUMBER] = list(range(len(rows)))
    table = pa.table(columns)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    written: bytes = sink.getvalue().to_pybytes()
    return written


def _plain_columns(rows: Sequence[Row]) -> list[str]:
    """Columns that all rows have, with values of one kind that Arrow has a column for."""
    names = [name for name in rows[0] if all(name in row for row in rows)]
    kinds = {name: {_kind(row[name]) for row in rows} - {""} for name in names}
    return [name for name in names if len(kinds[name]) == 1 and NESTED not in kinds[name]]


def _kind(value: JsonValue) -> str:
    """Empty for a missing value, which any column may have."""
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return "texts"
    if isinstance(value, list | dict):
        return NESTED
    return "" if value is None else type(value).__name__


def _read(stream: bytes) -> Sequence[Mapping[str, Any]]:
    import pyarrow as pa

    try:
        rows: list[dict[str, Any]] = pa.ipc.open_stream(stream).read_all().to_pylist()
    except pa.ArrowInvalid as error:
        raise UserError(f"Data-Juicer's answer is no Arrow stream: {error}") from error
    return rows


def _places(rows: Sequence[Mapping[str, Any]], size: int) -> list[int]:
    """Which tasks the rows are."""
    places = [row.get(NUMBER) for row in rows]
    if len(set(places)) < len(places) or not set(places) <= set(range(size)):
        raise UserError(
            f"Data-Juicer's answer has rows that are not of these {size} tasks: operators that "
            f"make new rows or drop the column `{NUMBER}` have no place here"
        )
    return [place for place in places if place is not None]


def _scores(
    rows: Sequence[Mapping[str, Any]], places_K: list[int], size: int
) -> dict[str, FloatVector]:
    """Of the statistics those that are numbers, by their names."""
    scores: dict[str, FloatVector] = {}
    for place, row in zip(places_K, rows, strict=True):
        for name, value in _stats(row.get(STATS)).items():
            if isinstance(value, int | float):
                own = scores.setdefault(name, numpy.full(size, numpy.nan))
                own[place] = float(value)
    return scores


def _stats(cell: Any) -> Mapping[str, Any]:
    """A struct, or text in JSON, by the version of Data-Juicer."""
    values = json.loads(cell) if isinstance(cell, str) else cell
    return values if isinstance(values, dict) else {}
