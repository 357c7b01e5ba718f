"""What the file system refuses while a command writes, as a sentence about the place."""

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path

from trinity.errors import UserError


@contextlib.contextmanager
def writing(target: Path, advice: str) -> Iterator[None]:
    """For a block that writes `target` or below it; `advice` says what to give instead.

    Raises: UserError when something there cannot be written.
    """
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot write {target}, {_why(error, target)}: {advice}") from error


def _why(error: OSError, target: Path) -> str:
    place = Path(error.filename2 or error.filename or target)
    match error.errno:
        case errno.ENOTDIR | errno.EEXIST:
            return f"{_file_on_the_way_to(place)} is a file and no folder"
        case errno.EISDIR:
            return f"{place} is a folder"
        case errno.ENOENT:
            return f"there is no folder {target.parent}"
        case _:
            return f"{place}: {error.strerror}"


def _file_on_the_way_to(place: Path) -> Path:
    places = (place, *place.parents)
    return next((one for one in places if one.exists() and not one.is_dir()), place)
