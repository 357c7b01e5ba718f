"""Reads the rows of a taskset; runs as a separate process.

    python -m services.buffer.tasksets.read_rows

The buffer itself never loads the parquet library. This module starts for every stage that opens, so
it imports only the libraries that a source needs. One request has the `source`, a `RowSource` as
text. The answers:

- `num_bytes` of rows that follow, as JSON lines
- `media` of `num_bytes` that follow: an image of the rows after it
- `unread`: a sentence about files that were left out
- `skipped`, the last answer: rows that were left out; in its place an `error` in one sentence

Or each request has a `row` that a client submitted. The last answer is `num_bytes` of the row with
hashes for its images, or `refused`, the reason.
"""

import json
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from services.buffer.tasksets.allowed_files import AllowedFiles
from services.buffer.tasksets.row_sources import RowSource
from trinity.config.data_files import find_data_files, unread_sentence
from trinity.data.rows import placed_rows, row_name, row_to_json
from trinity.errors import UserError
from trinity.runtime.process.channel import RequestChannel
from trinity.runtime.rpc.limits import MAX_MESSAGE_BYTES

if TYPE_CHECKING:  # it takes the schema of the configuration along
    from trinity.config.training_rows import RowCheck
    from trinity.data.images import RowImages

MAX_NAMED_ROWS = 3
MAX_ROW_BYTES = MAX_MESSAGE_BYTES // 2
"""A row is sent to an explorer, or to the trainer, in a single message."""
WRITE_LENGTH = 64 * 1024
"""The capacity of a pipe, so that the reader wakes up once for that many bytes."""


Write = Callable[..., None]
"""Writes an answer, and bytes after it."""


def main() -> None:
    """Answers the one request for a source, or all those for submitted rows."""
    channel = RequestChannel()
    for request in channel.requests():
        if "source" in request:
            return read_rows(RowSource.from_json(request["source"]), channel.write)
        take_images(request["row"], channel.write)


def take_images(text: str, write: Write) -> None:
    """Writes a submitted row without its images; one that is no JSON as it is."""
    images = _row_images(None, _refuse_path, write)
    try:
        row = json.loads(text)
        taken = images.taken(row, "")
        body = (text if taken == row else row_to_json(taken, "")).encode()
    except UserError as error:
        write({"refused": str(error).removeprefix(", ")})
    except (ValueError, RecursionError):
        write({"num_bytes": len(text.encode())}, text.encode())
    else:
        write({"num_bytes": len(body)}, body)


def read_rows(source: RowSource, write: Write) -> None:
    """Writes the rows of a source."""
    skipped = SkippedCounter()
    try:
        for lines in _lines(source, skipped, write):
            write({"num_bytes": len(lines)}, lines)
    except UserError as error:
        write({"error": str(error)})
    except Exception as error:  # the edge of the process: a library's error is the buffer's answer
        traceback.print_exc()
        write({"error": f"{type(error).__name__}: {error}".splitlines()[0]})
    else:
        write({"skipped": asdict(skipped)})


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


def _line(row: object, where: str) -> str:
    text = row_to_json(row, where)
    if len(text) > MAX_ROW_BYTES:
        raise UserError(f"{where}: it has {len(text):,} bytes, a row may have {MAX_ROW_BYTES:,}")
    return f"{text}\n"


def _checked_line(
    row: object,
    where: str,
    check: "RowCheck | None",
    skipped: SkippedCounter,
    images: "RowImages | None",
) -> str:
    """Returns a row's line; empty for a skipped row.

    Raises: UserError for a row that must not be left out.
    """

    def taken() -> object:
        return row if images is None else images.taken(row, where)

    if check is None:
        return _line(taken(), where)
    try:
        line = _line(taken(), where)
        check.require_trainable(json.loads(line), where)
    except UserError as error:
        if not check.skips:
            raise UserError(f"{error}; `on_bad_row: skip` leaves such rows out") from error
        skipped.add(str(error))
        return ""
    return line


def _lines(source: RowSource, skipped: SkippedCounter, write: Write) -> Iterator[bytes]:
    """Yields rows as chunks of JSON lines."""
    lines: list[str] = []
    length = 0
    images = _images(source, write)
    for where, row in _rows(source, write, images):
        line = _checked_line(row, where, source.check, skipped, images)
        lines.append(line)
        length += len(line)
        if length >= WRITE_LENGTH:
            yield "".join(lines).encode()
            lines, length = [], 0
    yield "".join(lines).encode()


def _images(source: RowSource, write: Write) -> "RowImages | None":
    """Returns what takes images out of rows and writes each of them once."""
    if source.image_key is None:
        return None
    from trinity.data.images import MAX_IMAGE_BYTES  # for such rows only

    tree = AllowedFiles(source.roots)

    def read_file(path: Path) -> bytes:
        with tree.open(path) as stream:
            return stream.read(MAX_IMAGE_BYTES + 1)

    return _row_images(source.image_key, read_file, write)


def _row_images(
    column: str | None, read_file: Callable[[Path], bytes], write: Write
) -> "RowImages":
    from trinity.data.images import EncodedImage, RowImages

    def keep(image: EncodedImage) -> None:
        ref = {"sha256": image.ref.sha256.hex(), "media_type": image.ref.media_type}
        write({"media": ref, "num_bytes": image.ref.size}, image.content)

    return RowImages(column, read_file, keep)


def _refuse_path(path: Path) -> bytes:
    raise UserError(f"{str(path)!r} is a path: give a data URL")


def _rows(
    source: RowSource, write: Write, images: "RowImages | None"
) -> Iterator[tuple[str, object]]:
    """Yields each row with a description of its location."""
    match source.kind:
        case "file":
            tree = AllowedFiles(source.roots)
            yield from _of_files(source, source.place, tree, write, images)
        case "hub":
            from services.buffer.tasksets.row_sources import dataset_cache, download  # asks the hub

            cache = AllowedFiles((dataset_cache(source.place),))
            yield from _of_files(source, download(source), cache, write, images)
        case "sql":
            from services.buffer.tasksets.row_tables import read_table  # loads SQLAlchemy

            for number, row in enumerate(read_table(source)):
                yield f"table {source.table}, {row_name(number)}", row
        case "environment":
            from services.buffer.tasksets.row_environments import read_environment

            for number, row in enumerate(read_environment(source)):
                yield f"{source.place}, {row_name(number)}", row


def _of_files(
    source: RowSource, path: str, tree: AllowedFiles, write: Write, images: "RowImages | None"
) -> Iterator[tuple[str, object]]:
    files = find_data_files(path, source.split, source.subset_name, tree)
    if sentence := unread_sentence(files, path, source.split, source.subset_name, tree):
        write({"unread": sentence})
    for file in files:
        if images is not None:
            images.folder = file.parent
        with _opened(file, tree) as stream:
            yield from placed_rows(stream, str(file))


def _opened(file: Path, tree: AllowedFiles) -> BinaryIO:
    try:
        return tree.open(file)
    except OSError as error:
        raise UserError(f"cannot read {file}: {error}") from error


if __name__ == "__main__":
    main()
