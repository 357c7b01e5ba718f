"""Reads the first rows of data files and counts their rows, without loading them."""

import importlib.util
import json
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import TypeAlias

from trinity.data.rows import (
    arrow_batches,
    file_kind,
    placed_rows,
    plain_stream,
    reading_errors,
    row_to_json,
)
from trinity.errors import UserError
from trinity.runtime.json_values import JsonValue

Row = Mapping[str, JsonValue]
PlacedRow: TypeAlias = tuple[str, Row]
"""A row with its place, such as `d.jsonl:14`."""

READ_AHEAD_ROWS = 16
"""Rows of a parquet file that are decoded together."""
READ_WHOLE_BYTES = 64 * 1024 * 1024
"""Files up to this size are parsed row by row when counted, so that a broken row is found early."""


def first_rows(files: tuple[Path, ...], count: int) -> list[Row]:
    """Returns the first rows of the files, at least one, as they will be stored."""
    return [row for _, row in first_placed_rows(files, count)]


def first_placed_rows(
    files: tuple[Path, ...], count: int, image_key: str | None = None
) -> list[PlacedRow]:
    """Returns the first rows with their places in the files; their images are checked."""
    rows = list(islice((row for file in files for row in _stored_rows(file, image_key)), count))
    if not rows:
        raise UserError(f"{', '.join(map(str, files))} is empty: it needs at least one row")
    return rows


def first_row(files: tuple[Path, ...]) -> Row:
    """Returns the first row of the first file that has one."""
    return first_rows(files, 1)[0]


def _stored_rows(file: Path, image_key: str | None) -> Iterator[PlacedRow]:
    images = None
    if image_key:
        from trinity.data.images import RowImages, read_image_file  # numpy, for such rows only

        images = RowImages(image_key, read_image_file)
    for place, row in _rows(file):
        taken: object = row
        if images is not None:
            images.folder = file.parent
            taken = images.taken(row, place)
        stored: Row = json.loads(row_to_json(taken, place))
        yield place, stored


def _rows(file: Path) -> Iterator[PlacedRow]:
    _require_pyarrow(file)
    with file.open("rb") as stream:
        for place, row in placed_rows(stream, str(file), batch_rows=READ_AHEAD_ROWS):
            if not isinstance(row, dict):
                raise UserError(
                    f"{place}: it is not an object with columns: write one `{{...}}` a row"
                )
            yield place, row


def count_rows(files: tuple[Path, ...]) -> int:
    """Rows of all files together."""
    return sum(_count(file) for file in files)


def _count(file: Path) -> int:
    if file.suffix in (".parquet", ".arrow"):
        return _count_arrow(file)
    is_table = file_kind(file.name) in ("csv", "tsv")
    if is_table or file.stat().st_size <= READ_WHOLE_BYTES:
        return sum(1 for _ in _rows(file))
    with reading_errors(str(file)), file.open("rb") as stream:
        return sum(1 for line in plain_stream(stream, file.name) if line.strip())


def _require_pyarrow(file: Path) -> None:
    if file.suffix in (".parquet", ".arrow") and importlib.util.find_spec("pyarrow") is None:
        raise UserError(f"reading {file} needs pyarrow: run `trinity setup export`")


def _count_arrow(file: Path) -> int:
    import pyarrow
    import pyarrow.parquet

    try:
        if file.suffix == ".parquet":
            return int(pyarrow.parquet.ParquetFile(file).metadata.num_rows)
        with pyarrow.memory_map(str(file)) as source:
            return sum(batch.num_rows for batch in arrow_batches(source))
    except pyarrow.ArrowException as error:
        raise UserError(f"{file} is not a readable {file.suffix} file: {error}") from error
