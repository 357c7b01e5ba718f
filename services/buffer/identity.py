"""Which content a taskset has, so that the same content is read once."""

import hashlib
from collections.abc import Sequence

from services.buffer.allowed_files import check_place
from services.buffer.handlers.open_stage import NeededTaskset
from services.buffer.hub import newest_revision
from services.buffer.row_source import RowSource
from trinity.config.data_files import find_data_files
from trinity.config.taskset_storage import is_hub_name, without_password
from trinity.errors import PreconditionFailed, UserError


def source_of(
    needed: NeededTaskset, place: str, roots: Sequence[str], commit: str | None = None
) -> RowSource:
    """What the reader is told; of a dataset on the hub without `commit` the one that is newest now.

    Raises: PreconditionFailed naming the taskset when there is no such dataset.
    """
    kind, revision = "file", None
    if needed.table is not None:
        kind = "sql"
    elif is_hub_name(place):
        kind, revision = "hub", commit or _newest_revision(needed.name, place)
    return RowSource.model_validate(
        {
            "kind": kind,
            "place": place,
            "revision": revision,
            "split": needed.split,
            "subset_name": needed.subset_name,
            "table": needed.table,
            "roots": tuple(roots),
        }
    )


def _newest_revision(name: str, place: str) -> str:
    try:
        return newest_revision(place)
    except UserError as error:
        raise PreconditionFailed(f"taskset {name}: {error}") from error


def identity(name: str, source: RowSource, experiment_id: str) -> str:
    """A text that is another one when the content may be another one.

    Files have their sizes and times, datasets on the hub their commit. Nothing tells whether a
    table has changed: each experiment reads it once, and keeps what it read.

    Raises: PreconditionFailed naming the taskset when there is no such data, or none to be read.
    """
    try:
        match source.kind:
            case "sql":
                return f"{without_password(source.place)}|{source.table}|{experiment_id}"
            case "hub":
                assert source.revision is not None
                stamp = source.revision
            case _:
                stamp = _stamp(source)
    except (UserError, OSError) as error:
        raise PreconditionFailed(f"taskset {name}: {error}") from error
    return f"{source.place}|{source.split}|{source.subset_name or ''}|{stamp}"


def _stamp(source: RowSource) -> str:
    check_place(source.place, source.roots)
    files = find_data_files(source.place, source.split, source.subset_name)
    for file in files:
        check_place(str(file), source.roots)
    stamps = [f"{file}:{file.stat().st_size}:{file.stat().st_mtime_ns}" for file in files]
    return hashlib.sha256("\n".join(stamps).encode()).hexdigest()
