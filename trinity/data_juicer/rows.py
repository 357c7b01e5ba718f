"""Converts rows to and from Data-Juicer's server, and reads the statistics it measured."""

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import numpy
import numpy.typing

from trinity.data_juicer.client import DataJuicer
from trinity.errors import UserError
from trinity.json_values import JsonValue

STATS = "__dj__stats__"
FloatVector: TypeAlias = numpy.typing.NDArray[numpy.float64]
Answered: TypeAlias = Sequence[Mapping[str, Any]]


def session(
    server_url: str,
    *,
    operators: list[dict[str, JsonValue]] | None,
    config_path: str | None,
    num_processes: int,
    limit_seconds: float,
) -> DataJuicer:
    """Returns the session for these settings, which is shared by all rows with the same ones."""
    pipeline = {"operators": operators, "config_path": config_path, "np": num_processes}
    return _session(server_url, json.dumps(pipeline, sort_keys=True), limit_seconds)


@lru_cache(maxsize=32)
def _session(url: str, pipeline: str, limit_seconds: float) -> DataJuicer:
    return DataJuicer(url, json.loads(pipeline), limit_seconds)


def write_columns(columns: Mapping[str, Sequence[JsonValue]]) -> bytes:
    """Writes columns as an Arrow stream."""
    import pyarrow as pa  # takes 40 MB: only for users of these operators

    table = pa.table(dict(columns))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    written: bytes = sink.getvalue().to_pybytes()
    return written


def read_rows(stream: bytes) -> Answered:
    """Reads rows; raises UserError when it is not an Arrow stream."""
    import pyarrow as pa

    try:
        rows: list[dict[str, Any]] = pa.ipc.open_stream(stream).read_all().to_pylist()
    except pa.ArrowInvalid as error:
        raise UserError(f"Data-Juicer's answer is no Arrow stream: {error}") from error
    return rows


def places_of(rows: Answered, *, column: str, size: int, what: str) -> list[int]:
    """Returns the indices of the rows among those sent, by the column of their numbers.

    Raises: UserError when they are not a subset of them, each once.
    """
    places = [row.get(column) for row in rows]
    if len(set(places)) < len(places) or not set(places) <= set(range(size)):
        raise UserError(
            f"Data-Juicer's answer has rows that are not of these {size} {what}: operators that "
            f"make new rows or drop the column `{column}` have no place here"
        )
    return [place for place in places if place is not None]


def left_out(places_K: Sequence[int], size: int) -> numpy.typing.NDArray[numpy.bool_]:
    """Returns true for rows that are not in the answer, [N]."""
    left_out_N = numpy.ones(size, dtype=numpy.bool_)
    left_out_N[list(places_K)] = False
    return left_out_N


def measured(rows: Answered, places_K: Sequence[int], size: int) -> dict[str, FloatVector]:
    """Returns the numeric statistics by name, [N] each; NaN where there is none."""
    numbers: dict[str, FloatVector] = {}
    for place, row in zip(places_K, rows, strict=True):
        for name, value in _stats(row.get(STATS)).items():
            if isinstance(value, int | float):
                own = numbers.setdefault(name, numpy.full(size, numpy.nan))
                own[place] = float(value)
    return numbers


def _stats(cell: Any) -> Mapping[str, Any]:
    """Reads a struct or JSON text, depending on the version of Data-Juicer."""
    values = json.loads(cell) if isinstance(cell, str) else cell
    return values if isinstance(values, dict) else {}
