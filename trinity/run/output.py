"""Helpers for what commands print and write: plurals, durations, labels, errors of files."""

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path

from trinity.config.schema.base import KeyStatus
from trinity.errors import UserError

STATUS_LABELS = {
    KeyStatus.NO_EFFECT: "no effect",
    KeyStatus.RENAMED: "renamed",
    KeyStatus.PLANNED: "planned",
}
"""First word of a notice's line."""


def pluralize(number: int, noun: str) -> str:
    """`1 rank`, `2 ranks`, `1,000 ranks`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def format_duration(seconds: float) -> str:
    """Returns `12 s`, `3 min 20 s`."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


@contextlib.contextmanager
def write_errors(target: Path, advice: str) -> Iterator[None]:
    """Guards a block that writes `target` or below it; `advice` says what to give instead.

    Raises: UserError if something there cannot be written.
    """
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot write {target}, {_why(error, target)}: {advice}") from error


def _why(error: OSError, target: Path) -> str:
    place = Path(error.filename2 or error.filename or target)
    match error.errno:
        case errno.ENOTDIR | errno.EEXIST:
            return f"{_file_on_the_way_to(place)} is a file, not a folder"
        case errno.EISDIR:
            return f"{place} is a folder"
        case errno.ENOENT:
            return f"there is no folder {target.parent}"
        case _:
            return f"{place}: {error.strerror}"


def _file_on_the_way_to(place: Path) -> Path:
    places = (place, *place.parents)
    return next((path for path in places if path.exists() and not path.is_dir()), place)
