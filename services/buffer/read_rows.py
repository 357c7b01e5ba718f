"""Reads the rows of a taskset and writes one JSON line each; runs as a process of its own.

    python -m services.buffer.read_rows --path DATA --split train

The buffer itself never loads what reads parquet. Exit code 2 with one sentence on standard error
says what is wrong with the data.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path

from trinity.config.data_files import find_data_files
from trinity.errors import UserError
from trinity.types import JsonObject

USER_MISTAKE = 2
ARROW_BATCH_ROWS = 1024


def main() -> int:
    """Write the rows; answers the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--path", required=True)
    parser.add_argument("--split", default="train")
    parser.add_argument("--subset")
    given = parser.parse_args()
    try:
        for file in find_data_files(given.path, given.split, given.subset):
            for number, row in enumerate(read_file(file)):
                sys.stdout.write(_line(file, number, row))
        sys.stdout.flush()
    except UserError as error:
        sys.stderr.write(f"{error}\n")
        return USER_MISTAKE
    return 0


def read_file(file: Path) -> Iterator[object]:
    """The rows of one file, whatever its kind."""
    try:
        match file.suffix:
            case ".jsonl":
                yield from _read_json_lines(file)
            case ".json":
                yield from _read_json(file)
            case ".parquet":
                yield from _read_parquet(file)
            case _:
                yield from _read_arrow(file)
    except OSError as error:
        raise UserError(f"cannot read {file}: {error}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{file} is not UTF-8 text: {error.reason}") from error


def _read_json_lines(file: Path) -> Iterator[object]:
    with file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield _parse(file, line.strip(), number)


def _parse(file: Path, text: str, first_line: int) -> object:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        line = first_line + error.lineno - 1
        raise UserError(f"{file}, line {line}: not valid JSON: {error.msg}") from error


def _read_json(file: Path) -> Iterator[object]:
    """A list of rows; some files called .json hold JSON lines."""
    text = file.read_text(encoding="utf-8")
    if not text.lstrip().startswith("["):
        yield from _read_json_lines(file)
        return
    rows = _parse(file, text, 1)
    assert isinstance(rows, list)
    yield from rows


def _read_parquet(file: Path) -> Iterator[object]:
    import pyarrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(file) as table:
            for batch in table.iter_batches(ARROW_BATCH_ROWS):
                yield from batch.to_pylist()
    except pyarrow.ArrowException as error:
        raise UserError(f"{file} is not a readable parquet file: {error}") from error


def _read_arrow(file: Path) -> Iterator[object]:
    import pyarrow

    try:
        with pyarrow.memory_map(str(file)) as source, pyarrow.ipc.open_stream(source) as stream:
            for batch in stream:
                yield from batch.to_pylist()
    except pyarrow.ArrowException as error:
        raise UserError(f"{file} is not a readable Arrow file: {error}") from error


def _line(file: Path, number: int, row: object) -> str:
    if not isinstance(row, dict):
        raise UserError(f"{file}, row {number}: a row must be an object with named columns")
    try:
        return json.dumps(row, allow_nan=False, default=_plain) + "\n"
    except (TypeError, ValueError) as error:
        raise UserError(f"{file}, row {number}: {error}") from error


def _plain(value: object) -> JsonObject | str | float:
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    if isinstance(value, Decimal):
        return float(value)
    raise TypeError(f"a value of type {type(value).__name__} has no place in JSON")


if __name__ == "__main__":
    sys.exit(main())
