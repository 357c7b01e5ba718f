"""Sends samples through Data-Juicer: what it filters is left out, what it measures goes on."""

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy

from trinity.algorithm.advantage.needs import Arguments, Needs, needs
from trinity.algorithm.advantage.samples import FloatVector
from trinity.data_juicer.client import DataJuicer
from trinity.errors import UserError
from trinity.json_values import JsonValue
from trinity.operators.rollouts import Changes, Rollouts

STATS = "__dj__stats__"
NUMBER = "sample"


def _needs(arguments: Arguments) -> Needs:
    """Raises: UserError where it is not said what shall be done."""
    if (arguments.get("operators") is None) == (arguments.get("config_path") is None):
        raise UserError("give either `operators` or `config_path`")
    return Needs(content=True)


@needs(_needs)
def data_juicer(
    rollouts: Rollouts,
    *,
    server_url: str,
    operators: list[dict[str, JsonValue]] | None = None,
    config_path: str | None = None,
    np: int = 4,
    limit_seconds: float = 120.0,
) -> Changes:
    """Operators of a Data-Juicer server, by list or by a configuration file of its own.

    Rows have the columns text and response (both the response), prompt, reward and sample. What is
    not in the answer is left out; numbers of its statistics are `Rollouts.numbers` of the operators
    that follow. `server_url` is `service.data_juicer.server_url` unless it is given here.
    """
    pipeline = {"operators": operators, "config_path": config_path, "np": np}
    juicer = _juicer(server_url, json.dumps(pipeline, sort_keys=True), limit_seconds)
    rows = _read(juicer.process(_written(rollouts)))
    places_N = _places(rows, len(rollouts.rewards))
    left_out_N = numpy.ones(len(rollouts.rewards), dtype=numpy.bool_)
    left_out_N[places_N] = False
    return Changes(
        left_out=left_out_N,
        reason="Data-Juicer leaves it out",
        numbers=_numbers(rows, places_N, len(rollouts.rewards)),
    )


@lru_cache(maxsize=32)
def _juicer(url: str, pipeline: str, limit_seconds: float) -> DataJuicer:
    """The same session for all groups."""
    return DataJuicer(url, json.loads(pipeline), limit_seconds)


def _written(rollouts: Rollouts) -> bytes:
    import pyarrow as pa  # who only asks what the operator needs has no use for it

    responses = [one.response_text for one in rollouts.contents]
    table = pa.table(
        {
            NUMBER: list(range(len(responses))),
            "text": responses,
            "prompt": [one.prompt_text for one in rollouts.contents],
            "response": responses,
            "reward": rollouts.rewards.tolist(),
        }
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    written: bytes = sink.getvalue().to_pybytes()
    return written


def _read(stream: bytes) -> Sequence[Mapping[str, Any]]:
    import pyarrow as pa

    try:
        rows: list[dict[str, Any]] = pa.ipc.open_stream(stream).read_all().to_pylist()
    except pa.ArrowInvalid as error:
        raise UserError(f"Data-Juicer's answer is no Arrow stream: {error}") from error
    return rows


def _places(rows: Sequence[Mapping[str, Any]], size: int) -> list[int]:
    """Which samples the rows are."""
    places = [row.get(NUMBER) for row in rows]
    if len(set(places)) < len(places) or not set(places) <= set(range(size)):
        raise UserError(
            f"Data-Juicer's answer has rows that are not of these {size} samples: operators that "
            "make new rows or drop the column `sample` have no place here"
        )
    return [place for place in places if place is not None]


def _numbers(
    rows: Sequence[Mapping[str, Any]], places_N: list[int], size: int
) -> dict[str, FloatVector]:
    """Of the statistics those that are numbers, by their names."""
    numbers: dict[str, FloatVector] = {}
    for place, row in zip(places_N, rows, strict=True):
        for name, value in _stats(row.get(STATS)).items():
            if isinstance(value, int | float):
                own = numbers.setdefault(name, numpy.full(size, numpy.nan))
                own[place] = float(value)
    return numbers


def _stats(cell: Any) -> Mapping[str, Any]:
    """A struct, or text in JSON, by the version of Data-Juicer."""
    values = json.loads(cell) if isinstance(cell, str) else cell
    return values if isinstance(values, dict) else {}
