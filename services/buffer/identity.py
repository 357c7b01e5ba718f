"""Identity of the content of a taskset, so that the same content is read only once."""

import hashlib
from collections.abc import Sequence

from services.buffer.allowed_files import check_place
from services.buffer.hub import newest_revision
from services.buffer.needed_types import NeededTaskset
from services.buffer.row_source import RowSource
from trinity.config.data_files import find_data_files
from trinity.config.taskset_storage import is_hub_name, without_password
from trinity.errors import PreconditionFailed, UserError


def source_of(
    needed: NeededTaskset, place: str, roots: Sequence[str], commit: str | None = None
) -> RowSource:
    """Returns the source for the reader; a hub dataset without `commit` gets the newest one.

    Raises: PreconditionFailed that names the taskset when there is no such dataset.
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
    """Returns a text that differs whenever the content may differ.

    Files are identified by sizes and modification times, datasets on the hub by their commit.
    Changes of a table cannot be detected: each experiment reads it once and keeps that copy.

    Raises: PreconditionFailed that names the taskset when its data are missing or unreadable.
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
