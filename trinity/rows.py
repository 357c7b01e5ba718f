"""Reads rows of tasks from files: JSON, JSON lines, CSV, Parquet and Arrow."""

import csv
import json
from collections.abc import Iterator
from datetime import date, datetime, time
from decimal import Decimal
from typing import TYPE_CHECKING, BinaryIO
from uuid import UUID

from trinity.errors import UserError

if TYPE_CHECKING:
    from pyarrow import RecordBatch


FILE_MAGIC = b"ARROW1"
ARROW_BATCH_ROWS = 1024
MAX_FIELD_LENGTH = 64 * 1024 * 1024
PlainValue = dict[str, object] | str | float


def arrow_batches(source: BinaryIO) -> Iterator["RecordBatch"]:
    """Yields the record batches of an open file in either format.

    Raises: ArrowException when it is in neither.
    """
    import pyarrow  # takes 40 MB, loaded for these files only

    is_file = source.read(len(FILE_MAGIC)) == FILE_MAGIC
    source.seek(0)
    if not is_file:
        with pyarrow.ipc.open_stream(source) as stream:
            yield from stream
        return
    with pyarrow.ipc.open_file(source) as file:
        for number in range(file.num_record_batches):
            yield file.get_batch(number)


def read_rows(stream: BinaryIO, name: str) -> Iterator[object]:
    """Yields the rows of an open file, by its extension; csv has no types and yields texts only.

    Raises: UserError naming the file and what is wrong with it.
    """
    try:
        match name.rpartition(".")[2]:
            case "jsonl":
                yield from _json_lines(stream, name)
            case "json":
                yield from _json(stream, name)
            case "csv":
                yield from _csv(stream, name)
            case "parquet":
                yield from _parquet(stream, name)
            case _:
                yield from _arrow(stream, name)
    except OSError as error:
        raise UserError(f"cannot read {name}: {error}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{name} is not UTF-8 text: {error.reason}") from error


def rows_to_json(stream: BinaryIO, name: str) -> Iterator[str]:
    """Yields the rows as JSON texts; JSON lines are passed through unchecked.

    Raises: UserError for a file that is not what its name says.
    """
    if name.endswith(".jsonl"):
        for line in stream:
            if text := line.decode(errors="replace").strip():
                yield text
        return
    for number, row in enumerate(read_rows(stream, name)):
        yield row_to_json(row, f"{name}, row {number}")


def row_to_json(row: object, where: str) -> str:
    """Encodes a row as one line of JSON.

    Raises: UserError for a value that JSON cannot hold.
    """
    if not isinstance(row, dict):
        raise UserError(f"{where}: a row must be an object with named columns")
    try:
        return _ENCODER.encode(row)
    except (TypeError, ValueError) as error:
        raise UserError(f"{where}: {error}") from error


def to_json_value(value: object) -> PlainValue:
    """Converts a value of a database or a data frame to one that JSON can hold."""
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, UUID):
        return str(value)
    raise TypeError(f"a value of type {type(value).__name__} has no place in JSON")


_ENCODER = json.JSONEncoder(allow_nan=False, default=to_json_value)


def _json_lines(stream: BinaryIO, name: str) -> Iterator[object]:
    for number, line in enumerate(stream, start=1):
        if text := line.decode().strip():
            yield _parse(name, text, number)


def _parse(name: str, text: str, first_line: int) -> object:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        line = first_line + error.lineno - 1
        raise UserError(f"{name}, line {line}: not valid JSON: {error.msg}") from error
    except RecursionError as error:
        raise UserError(f"{name}, line {first_line}: it is nested too deeply") from error
    except ValueError as error:  # Python parses no number of more than 4,300 digits
        reason = str(error).partition(";")[0]
        raise UserError(f"{name}, line {first_line}: not valid JSON: {reason}") from error


def _json(stream: BinaryIO, name: str) -> Iterator[object]:
    """Yields a list of rows; some files called .json hold JSON lines."""
    start = stream.read(4096)
    stream.seek(0)
    if not start.lstrip().startswith(b"["):
        yield from _json_lines(stream, name)
        return
    rows = _parse(name, stream.read().decode(), 1)
    assert isinstance(rows, list)
    yield from rows


def _csv(stream: BinaryIO, name: str) -> Iterator[object]:
    csv.field_size_limit(MAX_FIELD_LENGTH)
    texts = (line.decode().removeprefix("\ufeff") for line in stream)
    lines = csv.DictReader(texts, strict=True)
    try:
        for row in lines:
            if None in row or None in row.values():
                num_columns = len(lines.fieldnames or ())
                raise UserError(
                    f"{name}, line {lines.line_num}: it does not have the {num_columns} columns "
                    "that the first line names"
                )
            yield row
    except csv.Error as error:
        raise UserError(f"{name}, line {lines.line_num}: not valid csv: {error}") from error


def _parquet(stream: BinaryIO, name: str) -> Iterator[object]:
    import pyarrow  # takes 40 MB, loaded for these files only
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(stream) as table:
            for batch in table.iter_batches(ARROW_BATCH_ROWS):
                yield from batch.to_pylist()
    except pyarrow.ArrowException as error:
        raise UserError(f"{name} is not a readable parquet file: {error}") from error


def _arrow(stream: BinaryIO, name: str) -> Iterator[object]:
    import pyarrow

    try:
        for batch in arrow_batches(stream):
            # A file may be one batch of all its rows.
            for first in range(0, batch.num_rows, ARROW_BATCH_ROWS):
                yield from batch.slice(first, ARROW_BATCH_ROWS).to_pylist()
    except pyarrow.ArrowException as error:
        raise UserError(f"{name} is not a readable Arrow file: {error}") from error
