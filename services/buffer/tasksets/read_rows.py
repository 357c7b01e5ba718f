"""Reads the rows of a taskset and writes them as JSON lines; runs as a separate process.

    echo '{"kind": "file", "place": "DATA", "roots": ["/"]}' > source.json
    python -m services.buffer.tasksets.read_rows < source.json

The buffer itself never loads the parquet library. If the data are wrong, the exit code is 2 and
standard error has one sentence that says why.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from services.buffer.tasksets.row_sources import RowSource, check_path, open_allowed
from trinity.config.data_files import find_data_files
from trinity.errors import UserError
from trinity.rows import read_rows, row_to_json
from trinity.rpc.limits import MAX_MESSAGE_BYTES

USER_MISTAKE = 2
MAX_ROW_BYTES = MAX_MESSAGE_BYTES // 2
"""A row is sent to an explorer, or to the trainer, in a single message."""
WRITE_LENGTH = 64 * 1024
"""The capacity of a pipe, so that the reader wakes up once for that many bytes."""


def main() -> int:
    """Writes the rows; returns the exit code."""
    source = RowSource.model_validate_json(sys.stdin.read())
    try:
        for lines in _lines(source):
            sys.stdout.write(lines)
        sys.stdout.flush()
    except UserError as error:
        sys.stderr.write(f"{error}\n")
        return USER_MISTAKE
    return 0


def _line(row: object, where: str) -> str:
    text = row_to_json(row, where)
    if len(text) > MAX_ROW_BYTES:
        raise UserError(f"{where}: it has {len(text):,} bytes, a row may have {MAX_ROW_BYTES:,}")
    return f"{text}\n"


def _lines(source: RowSource) -> Iterator[str]:
    """Yields rows as chunks of JSON lines."""
    lines: list[str] = []
    length = 0
    for where, row in _rows(source):
        lines.append(_line(row, where))
        length += len(lines[-1])
        if length >= WRITE_LENGTH:
            yield "".join(lines)
            lines, length = [], 0
    yield "".join(lines)


def _rows(source: RowSource) -> Iterator[tuple[str, object]]:
    """Yields each row with a description of its location."""
    match source.kind:
        case "file":
            yield from _of_files(source, source.place, source.roots)
        case "hub":
            from services.buffer.tasksets.row_sources import dataset_cache, download  # asks the hub

            roots = (dataset_cache(source.place),)
            yield from _of_files(source, download(source), roots)
        case "sql":
            from services.buffer.tasksets.row_sources import read_table  # loads SQLAlchemy

            for number, row in enumerate(read_table(source)):
                yield f"table {source.table}, row {number}", row


def _of_files(source: RowSource, path: str, roots: tuple[str, ...]) -> Iterator[tuple[str, object]]:
    files = find_data_files(
        path, source.split, source.subset_name, check=lambda place: check_path(str(place), roots)
    )
    for file in files:
        with _opened(file, roots) as stream:
            for number, row in enumerate(read_rows(stream, str(file))):
                yield f"{file}, row {number}", row


def _opened(file: Path, roots: tuple[str, ...]) -> BinaryIO:
    try:
        return open_allowed(file, roots)
    except OSError as error:
        raise UserError(f"cannot read {file}: {error}") from error


if __name__ == "__main__":
    sys.exit(main())
