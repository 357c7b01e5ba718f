"""Sends tasks through Data-Juicer, which filters, rewrites and scores rows."""

from collections.abc import Sequence

from trinity.operators.tasks.task_rows import Row, TaskChanges, TaskRows
from trinity.runtime.json_values import JsonValue
from trinity.user_code.data_juicer import client as dj_client

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
    """Applies operators of a Data-Juicer server, from a list or its own configuration file.

    It gets the columns of texts, numbers and lists of texts; without a column `text`, all texts
    joined become one.
    """
    session = dj_client.session(
        server_url,
        operators=operators,
        config_path=config_path,
        num_processes=np,
        limit_seconds=limit_seconds,
    )
    size, has_text = len(tasks.rows), all(TEXT in row for row in tasks.rows)
    answered = dj_client.read_rows(session.process_rows(_written(tasks.rows, has_text)))
    places_K = dj_client.row_indices(answered, column=NUMBER, size=size, what="tasks")
    rows = [dict(row) for row in tasks.rows]
    for place, row in zip(places_K, answered, strict=True):
        rows[place] |= {name: row[name] for name in rows[place] if name in row}
    return TaskChanges(
        left_out=dj_client.left_out(places_K, size),
        reason="Data-Juicer leaves it out",
        scores=dj_client.statistics(answered, places_K, size),
        rows=rows,
    )


def _written(rows: Sequence[Row], has_text: bool) -> bytes:
    columns: dict[str, list[JsonValue]] = {
        name: [row[name] for row in rows] for name in _plain_columns(rows)
    }
    if not has_text:
        texts = ["\n".join(v for v in row.values() if isinstance(v, str)) for row in rows]
        columns[TEXT] = list(texts)
    columns[NUMBER] = list(range(len(rows)))
    return dj_client.write_columns(columns)


def _plain_columns(rows: Sequence[Row]) -> list[str]:
    """Returns columns that all rows have, with values of one type that Arrow supports."""
    names = [name for name in rows[0] if all(name in row for row in rows)]
    kinds = {name: {_kind(row[name]) for row in rows} - {""} for name in names}
    return [name for name in names if len(kinds[name]) == 1 and NESTED not in kinds[name]]


def _kind(value: JsonValue) -> str:
    """Returns the type of a value; empty for null, which any column may have."""
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return "texts"
    if isinstance(value, list | dict):
        return NESTED
    return "" if value is None else type(value).__name__
