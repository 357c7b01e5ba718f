"""Reads rows of tasks from files: JSON, JSON lines, CSV, TSV, Parquet and Arrow."""

import codecs
import csv
import gzip
import json
import math
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import IO, TYPE_CHECKING, TypeAlias, cast
from uuid import UUID

from trinity.data.conversations import without_nulls
from trinity.errors import UserError
from trinity.runtime.json_values import JsonValue

if TYPE_CHECKING:
    from pyarrow import DataType, RecordBatch


FILE_MAGIC = b"ARROW1"
COMPRESSED = ".gz"
JSON_LINES = ("jsonl", "ndjson")
ARROW_BATCH_ROWS = 1024
MAX_FIELD_LENGTH = 64 * 1024 * 1024
_NumberedRow: TypeAlias = tuple[int, object]
PlainValue = dict[str, object] | str | float | None
_CHAT_KEYS = ("role", "function", "parameters")
"""One of these is a key of every message and every tool."""


def arrow_batches(source: IO[bytes]) -> Iterator["RecordBatch"]:
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


def read_rows(
    stream: IO[bytes], name: str, *, batch_rows: int = ARROW_BATCH_ROWS
) -> Iterator[object]:
    """Yields the rows of an open file, by its extension; csv has no types and yields texts only.

    Rows of parquet and Arrow files are decoded `batch_rows` at a time.

    Raises: UserError that names the file and its error.
    """
    return (row for _, row in placed_rows(stream, name, batch_rows=batch_rows))


def placed_rows(
    stream: IO[bytes], name: str, *, batch_rows: int = ARROW_BATCH_ROWS
) -> Iterator[tuple[str, object]]:
    """Yields the rows of an open file with their places: `d.jsonl:14`, or a table's row.

    Raises: as `read_rows`.
    """
    with reading_errors(name):
        found = _rows_of_kind(plain_stream(stream, name), name, batch_rows)
        for number, (line, row) in enumerate(found):
            yield f"{name}:{line}" if line else f"{name}, {row_name(number)}", row


def row_name(index: int) -> str:
    """Returns the words for a row that is no line of a file, and says where its number begins."""
    return f"row {index} (from 0)"


@contextmanager
def reading_errors(name: str) -> Iterator[None]:
    """Raises UserError with the file's name where it cannot be read or unpacked."""
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot read {name}: {error}") from error
    except (EOFError, zlib.error) as error:
        raise UserError(f"cannot read {name}: its compressed text is cut or damaged") from error


def plain_stream(stream: IO[bytes], name: str) -> IO[bytes]:
    """Returns the decompressed content of a compressed file; other files are returned unchanged."""
    return cast(IO[bytes], gzip.open(stream)) if name.endswith(COMPRESSED) else stream


def file_kind(name: str) -> str:
    """Returns the extension for a file's format, without that of its compression."""
    return name.removesuffix(COMPRESSED).rpartition(".")[2]


def _rows_of_kind(stream: IO[bytes], name: str, batch_rows: int) -> Iterator[_NumberedRow]:
    """Yields rows with their lines, from 1 on; 0 for rows that are no lines."""
    match file_kind(name):
        case "jsonl" | "ndjson":
            yield from _json_lines(stream, name)
        case "json":
            yield from _json(stream, name)
        case "csv":
            yield from _csv(stream, name, delimiter=",")
        case "tsv":
            yield from _csv(stream, name, delimiter="\t")
        case "parquet":
            yield from ((0, row) for row in _parquet(stream, name, batch_rows))
        case _:
            yield from ((0, row) for row in _arrow(stream, name, batch_rows))


def rows_to_json(stream: IO[bytes], name: str) -> Iterator[str]:
    """Yields the rows as JSON texts; JSON lines are passed through unchecked.

    Raises: UserError for a file whose format does not match its name.
    """
    if file_kind(name) in JSON_LINES:
        with reading_errors(name):
            lines = _text_lines(plain_stream(stream, name), name, errors="replace")
            yield from (_finite_line(line, f"{name}:{number}") for number, line in lines)
        return
    for place, row in placed_rows(stream, name):
        yield row_to_json(row, place)


def _finite_line(line: str, where: str) -> str:
    """Returns a line of JSON without the numbers that JSON does not have."""
    if "NaN" not in line and "Infinity" not in line:
        return line
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):  # the buffer reports the error
        return line
    return row_to_json(row, where) if isinstance(row, dict) else line


def row_to_json(row: object, where: str) -> str:
    """Encodes a row as one line of JSON; unsupported values become null, see `to_json_value`.

    Raises: UserError for a value of an unknown type.
    """
    if not isinstance(row, dict):
        raise UserError(f"{where}: a row must be an object with named columns")
    try:
        return _encode(row)
    except (TypeError, ValueError) as error:
        raise UserError(f"{where}: {error}") from error


def _encode(row: dict[object, object]) -> str:
    try:
        return _ENCODER.encode(row)
    except ValueError:  # a number that is not finite
        return _ENCODER.encode(_finite(row))


def _finite(value: object) -> object:
    """Replaces numbers that are not finite by null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    return [_finite(part) for part in value] if isinstance(value, list | tuple) else value


def to_json_value(value: object) -> PlainValue:
    """Converts a value of a database or a data frame to one that JSON can hold.

    A duration becomes its seconds; bytes that are no text become null.
    """
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Decimal):
        return _number_of_decimal(value)
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return _text_of_bytes(bytes(value))
    raise TypeError(f"a value of type {type(value).__name__} has no place in JSON")


def _number_of_decimal(value: Decimal) -> PlainValue:
    """Returns a number, or the decimal's own digits where a number would lose some."""
    if not value.is_finite():
        return None
    number = float(value)
    return number if Decimal(repr(number)) == value else str(value)


def _text_of_bytes(value: bytes) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


_ENCODER = json.JSONEncoder(allow_nan=False, default=to_json_value)


def _json_lines(stream: IO[bytes], name: str) -> Iterator[_NumberedRow]:
    for number, text in _text_lines(stream, name):
        yield number, _parse(name, text, number)


def _text_lines(
    stream: IO[bytes], name: str, *, errors: str = "strict"
) -> Iterator[tuple[int, str]]:
    """Yields the lines that are not empty, with their numbers from 1 on."""
    for number, line in enumerate(stream, start=1):
        data = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
        if text := _decoded(data, f"{name}:{number}", errors).strip():
            yield number, text


def _decoded(data: bytes, where: str, errors: str = "strict") -> str:
    try:
        return data.decode(errors=errors)
    except UnicodeDecodeError as error:
        raise UserError(f"{where}: it is not UTF-8 text: {error.reason}") from error


def _parse(name: str, text: str, first_line: int) -> object:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        line = first_line + error.lineno - 1
        raise UserError(f"{name}:{line}: not valid JSON: {error.msg}") from error
    except RecursionError as error:
        raise UserError(f"{name}:{first_line}: it is nested too deeply") from error
    except ValueError as error:  # Python parses no number of more than 4,300 digits
        reason = str(error).partition(";")[0]
        raise UserError(f"{name}:{first_line}: not valid JSON: {reason}") from error


def _json(stream: IO[bytes], name: str) -> Iterator[_NumberedRow]:
    """Yields a list of rows; some files called .json hold JSON lines."""
    start = stream.read(4096).removeprefix(codecs.BOM_UTF8)
    stream.seek(0)
    if not start.lstrip().startswith(b"["):
        try:
            yield from _json_lines(stream, name)
        except UserError as error:
            advice = "a .json file holds a list of rows, `[...]`, or a row on each line"
            raise UserError(f"{error}: {advice}") from error
        return
    rows = _parse(name, _decoded(stream.read().removeprefix(codecs.BOM_UTF8), name), 1)
    assert isinstance(rows, list)
    yield from ((0, row) for row in rows)


def _csv(stream: IO[bytes], name: str, *, delimiter: str) -> Iterator[_NumberedRow]:
    csv.field_size_limit(MAX_FIELD_LENGTH)
    texts = (
        _decoded(line, f"{name}:{number}").removeprefix("\ufeff")
        for number, line in enumerate(stream, start=1)
    )
    lines = csv.DictReader(texts, strict=True, delimiter=delimiter)
    try:
        _require_distinct([column for column in lines.fieldnames or () if column], name)
        last = lines.line_num
        for row in lines:
            first, last = last + 1, lines.line_num
            if None in row or None in row.values():
                num_columns = len(lines.fieldnames or ())
                raise UserError(
                    f"{name}:{lines.line_num}: it does not have the {num_columns} columns "
                    "that the first line names"
                )
            yield first, row
    except csv.Error as error:
        line = lines.reader.line_num  # that of `lines` is the last line that was right
        raise UserError(f"{name}:{line}: not valid {file_kind(name)}: {error}") from error


def _require_distinct(columns: Sequence[str], name: str) -> None:
    """Raises UserError if two columns have one name: a row has room for one of them."""
    twice = [column for column, count in Counter(columns).items() if count > 1]
    if twice:
        raise UserError(
            f"{name} has several columns `{twice[0]}`: rename them, or leave all but one out"
        )


def _parquet(stream: IO[bytes], name: str, batch_rows: int) -> Iterator[object]:
    import pyarrow  # takes 40 MB, loaded for these files only
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(stream) as table:
            _require_distinct(table.schema_arrow.names, name)
            for batch in table.iter_batches(batch_rows):
                yield from _plain_rows(batch)
    except pyarrow.ArrowException as error:
        raise UserError(f"{name} is not a readable parquet file: {error}") from error


def _arrow(stream: IO[bytes], name: str, batch_rows: int) -> Iterator[object]:
    import pyarrow

    try:
        for batch in arrow_batches(stream):
            _require_distinct(batch.schema.names, name)
            # A file may be one batch of all its rows.
            for first in range(0, batch.num_rows, batch_rows):
                yield from _plain_rows(batch.slice(first, batch_rows))
    except pyarrow.ArrowException as error:
        raise UserError(f"{name} is not a readable Arrow file: {error}") from error


def _plain_rows(batch: "RecordBatch") -> Iterator[object]:
    """Yields the rows of a batch; Python has no nanoseconds, so times lose theirs."""
    import pyarrow

    for place, kind in enumerate(batch.schema.types):
        if pyarrow.types.is_timestamp(kind) or pyarrow.types.is_duration(kind):
            exact = _in_microseconds(kind)
            column = batch.column(place).cast(exact, safe=False)
            batch = batch.set_column(place, batch.schema.field(place).with_type(exact), column)
    yield from map(_without_fill, batch.to_pylist())


def _in_microseconds(kind: "DataType") -> "DataType":
    import pyarrow

    if pyarrow.types.is_duration(kind):
        return pyarrow.duration("us")
    return pyarrow.timestamp("us", tz=kind.tz)


def _without_fill(value: JsonValue) -> JsonValue:
    """Drops the nulls that stand in messages and tools for the fields of other ones.

    Parquet and Arrow know one type for all parts of a list: each has the fields of any.
    """
    if isinstance(value, dict):
        return {key: _without_fill(part) for key, part in value.items()}
    if not isinstance(value, list):
        return value
    parts = [without_nulls(part) if _is_of_chat(part) else part for part in value]
    return [_without_fill(part) for part in parts]


def _is_of_chat(value: JsonValue) -> bool:
    return isinstance(value, dict) and any(key in value for key in _CHAT_KEYS)
