"""Storage of a taskset's tasks, and checks of the keys that belong to it."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from trinity.config.data_files import SUFFIXES
from trinity.config.schema.data import TasksetConfig
from trinity.errors import UserError
from trinity.rows import arrow_batches, read_rows

HUB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
DATABASES = ("postgresql://", "sqlite:///")


def is_hub_name(path: str) -> bool:
    """True if it names a dataset on the Hugging Face hub: `owner/name`, with no such local path."""
    return HUB_NAME.fullmatch(path) is not None and not Path(path).exists()


def without_password(address: str) -> str:
    """A database's address with its password hidden."""
    return re.sub(r"(//[^:/@]*):[^@]*@", r"\1:***@", address)


def resolve_path(taskset: TasksetConfig, key: str) -> str | None:
    """Returns the path or address of the tasks; None for those that clients submit.

    Raises: UserError if the keys do not go together.
    """
    storage, path = taskset.storage_type, taskset.path
    if storage in ("file", "sql") and not path:
        raise UserError(f"{key}.path` is missing: `storage_type: {storage}` reads it")
    if storage in ("client", "queue") and path:
        raise UserError(
            f"{key}.path` goes with `storage_type: file` or `sql` only: remove one of the two"
        )
    if taskset.table and storage != "sql":
        raise UserError(f"{key}.table` goes with `storage_type: sql` only: remove one of the two")
    if not path:
        return None
    return database_address(path, key) if storage == "sql" else located_file(path)


def database_address(address: str, key: str) -> str:
    """Returns the address, with an absolute file for SQLite.

    Raises: UserError if it is not a database's address.
    """
    if not address.startswith(DATABASES):
        known = " or ".join(f"{start}..." for start in DATABASES)
        raise UserError(f"{key}.path` is not a database's address: give {known}")
    scheme, _, file = address.partition("sqlite:///")
    return f"sqlite:///{_absolute(file)}" if not scheme and file else address


def located_file(path: str) -> str:
    """Makes a path absolute, unless it is a hub name: not a file's, and in no local folder."""
    looks_local = path.endswith(SUFFIXES) or Path(path).parent.exists()
    return path if is_hub_name(path) and not looks_local else _absolute(path)


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().absolute())


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
