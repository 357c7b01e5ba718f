"""Reads the first row of data files and counts their rows, without loading them."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from trinity.errors import UserError
from trinity.rows import arrow_batches, read_rows

Row = Mapping[str, object]

READ_WHOLE_BYTES = 64 * 1024 * 1024
"""Files up to this size are parsed row by row when counted, so that a broken row is found early."""


def first_row(files: tuple[Path, ...]) -> Row:
    """The first row of the first file that has one."""
    for file in files:
        row = next(_rows(file), None)
        if row is not None:
            return row
    raise UserError(f"{', '.join(map(str, files))} is empty: it needs at least one row")


def _rows(file: Path) -> Iterator[Row]:
    if file.suffix == ".csv":
        return _csv_rows(file)
    return _json_rows(file) if _is_json(file) else _arrow_rows(file)


def count_rows(files: tuple[Path, ...]) -> int:
    """Rows of all files together."""
    return sum(_count(file) for file in files)


def _count(file: Path) -> int:
    if file.suffix == ".csv":
        return sum(1 for _ in _csv_rows(file))
    if not _is_json(file):
        return _count_arrow(file)
    if file.stat().st_size <= READ_WHOLE_BYTES:
        return sum(1 for _ in _json_rows(file))
    with file.open("rb") as lines:
        return sum(1 for line in lines if line.strip())


def _csv_rows(file: Path) -> Iterator[Row]:
    with file.open("rb") as stream:
        for row in read_rows(stream, str(file)):
            assert isinstance(row, dict)
            yield row


def _is_json(file: Path) -> bool:
    return file.suffix in (".json", ".jsonl")


def _json_rows(file: Path) -> Iterator[Row]:
    if _is_json_list(file):
        for number, value in enumerate(_json_list(file), start=1):
            yield _as_row(value, f"row {number} of {file}")
        return
    with file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield _as_row(_parse(line, f"{file}:{number}"), f"{file}:{number}")


def _is_json_list(file: Path) -> bool:
    if file.suffix != ".json":
        return False
    with file.open("rb") as stream:
        return stream.read(4096).lstrip().startswith(b"[")


def _json_list(file: Path) -> list[object]:
    values = _parse(file.read_bytes(), str(file))
    assert isinstance(values, list)
    return values


def _parse(text: bytes, where: str) -> object:
    try:
        return json.loads(text)
    except ValueError as error:
        raise UserError(f"{where} is not valid JSON ({error}): correct it") from error


def _as_row(value: object, where: str) -> Row:
    if not isinstance(value, dict):
        raise UserError(f"{where} is not an object with columns: write one `{{...}}` a row")
    return value


def _arrow_rows(file: Path) -> Iterator[Row]:
    try:
        import pyarrow  # weighs 40 MB, for these files only
        import pyarrow.parquet
    except ImportError as error:
        raise UserError(
            f"reading {file} needs pyarrow: run `make setup`, or pip install pyarrow"
        ) from error
    try:
        if file.suffix == ".parquet":
            for batch in pyarrow.parquet.ParquetFile(file).iter_batches(batch_size=1):
                yield from batch.to_pylist()
            return
        with pyarrow.memory_map(str(file)) as source:
            for batch in arrow_batches(source):
                yield from batch.to_pylist()
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise UserError(f"{file} cannot be read ({error}): write it again") from error


def _count_arrow(file: Path) -> int:
    import pyarrow
    import pyarrow.parquet

    if file.suffix == ".parquet":
        return int(pyarrow.parquet.ParquetFile(file).metadata.num_rows)
    with pyarrow.memory_map(str(file)) as source:
        return sum(batch.num_rows for batch in arrow_batches(source))
