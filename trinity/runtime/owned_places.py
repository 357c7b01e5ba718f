"""Paths that a user names and the program writes to; contents of others are never changed.

A folder that we created contains a file `.trinity`. A single file is created and never replaced,
unless its content has a mark, as lines of experiences and tokens do, or the user asks for it.
"""

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from trinity.errors import UserError

MARK = ".trinity"
"""The file that marks a folder as ours."""
LINE_MARK = '{"trinity": 1, '
"""The beginning of each line of experiences."""


def check_folder(folder: Path, advice: str) -> None:
    """Checks that a folder is ours, empty or not there. `advice` ends the error.

    Raises: UserError that names an entry of the folder.
    """
    if (folder / MARK).is_file() or not os.path.lexists(folder):
        return
    if not folder.is_dir():
        raise UserError(f"{folder} is a file, not a folder: {advice}")
    names = sorted(os.listdir(folder))
    if names:
        raise UserError(
            f"{folder} holds {names[0]} and was not made by Trinity, so nothing is written there: "
            f"{advice}"
        )


def claim_folder(folder: Path, advice: str) -> None:
    """Makes a folder ours; its parents are made if they are missing.

    Raises: UserError when it holds other things.
    """
    check_folder(folder, advice)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARK).touch()


def mark_if_new(folder: Path) -> None:
    """Makes a folder ours if it is empty or not there; leaves any other as it is."""
    if not folder.is_dir() or not os.listdir(folder):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / MARK).touch()


@contextlib.contextmanager
def working_folder(target: Path) -> Iterator[Path]:
    """Yields an empty folder next to a target, for its parts; removes that of a killed process.

    Raises: UserError when something else has its name.
    """
    folder = target.with_name(f".{target.name}.partial")
    check_folder(folder, "move it away")
    shutil.rmtree(folder, ignore_errors=True)
    claim_folder(folder, "move it away")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def move_to_new(made: Path, path: Path) -> None:
    """Moves a finished file or folder to its path. Raises: UserError if the path exists by now."""
    if os.path.lexists(path):
        raise UserError(f"{path} exists by now: give another path, or remove it")
    made.rename(path)


def write_new_file(path: Path, text: str, advice: str) -> None:
    """Writes a file that is not there yet. Raises: UserError when it is there; OSError."""
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UserError(f"{path} exists: {advice}") from None


def is_line_of_ours(line: bytes) -> bool:
    """Returns true for a whole line of experiences that Trinity has written."""
    if not line.startswith(LINE_MARK.encode()) or not line.endswith(b"\n"):
        return False
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return False
    found = [type(row.get(name)) for name in ("experiment_id", "stage", "number")]
    return found == [str, str, int]


def is_begun_line_of_ours(line: bytes) -> bool:
    """Returns true for an incomplete last line, left by a killed writer."""
    return line.startswith(LINE_MARK.encode())


def check_lines(path: Path) -> None:
    """Checks that a file of experiences is ours, empty or not there.

    Raises: UserError naming the first line that is not; OSError.
    """
    if not os.path.lexists(path):
        return
    if not path.is_file():
        raise UserError(f"{path} is not a file: give another path for experiences")
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not (is_line_of_ours(line) or (line[-1:] != b"\n" and is_begun_line_of_ours(line))):
                raise foreign_line_error(path, number)


def foreign_line_error(path: Path, number: int) -> UserError:
    """Returns the error for a file with a line that Trinity has not written."""
    return UserError(
        f"{path}, line {number}, is not of Trinity's experiences, so the file is left unchanged: "
        "give another path, or move the file away"
    )
