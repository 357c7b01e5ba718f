"""Reads the rows of a taskset and writes them as JSON lines; runs as a separate process.

    echo '{"kind": "file", "place": "DATA", "roots": ["/"]}' > source.json
    python -m services.buffer.tasksets.read_rows < source.json

The buffer itself never loads the parquet library. This module starts for every stage that opens, so
it imports only the libraries that a source needs. If the data are invalid, the exit code is 2 and
standard error has one sentence with the reason. Otherwise standard error has a line on skipped
files and a line of JSON on skipped rows, if any.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from services.buffer.tasksets.allowed_files import AllowedFiles
from services.buffer.tasksets.row_sources import RowSource
from trinity.config.data_files import find_data_files, unread_sentence
from trinity.data.rows import placed_rows, row_name, row_to_json
from trinity.errors import UserError
from trinity.runtime.rpc.limits import MAX_MESSAGE_BYTES

if TYPE_CHECKING:  # it takes the schema of the configuration along
    from trinity.config.training_rows import RowCheck

USER_MISTAKE = 2
MAX_NAMED_ROWS = 3
UNREAD_MARK = "files left out: "
MAX_ROW_BYTES = MAX_MESSAGE_BYTES // 2
"""A row is sent to an explorer, or to the trainer, in a single message."""
WRITE_LENGTH = 64 * 1024
"""The capacity of a pipe, so that the reader wakes up once for that many bytes."""


def main() -> int:
    """Writes the rows; returns the exit code."""
    source = RowSource.from_json(sys.stdin.read())
    skipped = SkippedCounter()
    try:
        for lines in _lines(source, skipped):
            sys.stdout.write(lines)
        sys.stdout.flush()
    except UserError as error:
        sys.stderr.write(f"{error}\n")
        return USER_MISTAKE
    if skipped.count:
        sys.stderr.write(skipped.to_line())
    return 0


@dataclass(slots=True)
class SkippedCounter:
    """Counts rows that are left out, and keeps the errors of the first."""

    count: int = 0
    first_errors: list[str] = field(default_factory=list)

    def add(self, error: str) -> None:
        """Counts a row with this error."""
        self.count += 1
        if len(self.first_errors) < MAX_NAMED_ROWS:
            self.first_errors.append(error)

    def to_line(self) -> str:
        """Returns the line that passes the counts on."""
        from trinity.config.training_rows import SkippedRows

        return SkippedRows(count=self.count, first_errors=tuple(self.first_errors)).to_line()


def _line(row: object, where: str) -> str:
    text = row_to_json(row, where)
    if len(text) > MAX_ROW_BYTES:
        raise UserError(f"{where}: it has {len(text):,} bytes, a row may have {MAX_ROW_BYTES:,}")
    return f"{text}\n"


def _checked_line(
    row: object, where: str, check: "RowCheck | None", skipped: SkippedCounter
) -> str:
    """Returns a row's line; empty for a skipped row.

    Raises: UserError for a row that must not be left out.
    """
    if check is None:
        return _line(row, where)
    try:
        line = _line(row, where)
        check.require_trainable(json.loads(line), where)
    except UserError as error:
        if not check.skips:
            raise UserError(f"{error}; `on_bad_row: skip` leaves such rows out") from error
        skipped.add(str(error))
        return ""
    return line


def _lines(source: RowSource, skipped: SkippedCounter) -> Iterator[str]:
    """Yields rows as chunks of JSON lines."""
    lines: list[str] = []
    length = 0
    for where, row in _rows(source):
        line = _checked_line(row, where, source.check, skipped)
        lines.append(line)
        length += len(line)
        if length >= WRITE_LENGTH:
            yield "".join(lines)
            lines, length = [], 0
    yield "".join(lines)


def _rows(source: RowSource) -> Iterator[tuple[str, object]]:
    """Yields each row with a description of its location."""
    match source.kind:
        case "file":
            yield from _of_files(source, source.place, AllowedFiles(source.roots))
        case "hub":
            from services.buffer.tasksets.row_sources import dataset_cache, download  # asks the hub

            cache = AllowedFiles((dataset_cache(source.place),))
            yield from _of_files(source, download(source), cache)
        case "sql":
            from services.buffer.tasksets.row_tables import read_table  # loads SQLAlchemy

            for number, row in enumerate(read_table(source)):
                yield f"table {source.table}, {row_name(number)}", row


def _of_files(source: RowSource, path: str, tree: AllowedFiles) -> Iterator[tuple[str, object]]:
    files = find_data_files(path, source.split, source.subset_name, tree)
    if sentence := unread_sentence(files, path, source.split, source.subset_name, tree):
        sys.stderr.write(f"{UNREAD_MARK}{sentence}\n")
    for file in files:
        with _opened(file, tree) as stream:
            yield from placed_rows(stream, str(file))


def _opened(file: Path, tree: AllowedFiles) -> BinaryIO:
    try:
        return tree.open(file)
    except OSError as error:
        raise UserError(f"cannot read {file}: {error}") from error


if __name__ == "__main__":
    sys.exit(main())
