"""Files that tasksets may be read from: regular files inside the allowed roots."""

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from trinity.errors import UserError

KERNEL = ("/proc", "/sys", "/dev")
"""Pseudo files there reveal facts about the machine, or block."""
KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def check_place(path: str, roots: Sequence[str]) -> str:
    """Checks that data may be read from a path; returns the real path to open.

    Raises: UserError when it is outside the roots, or neither a file nor a directory.
    """
    real = os.path.realpath(path)
    if not any(_is_inside(real, os.path.realpath(root)) for root in roots):
        led = "" if real == os.path.abspath(path) else f" leads to {real}, which"
        raise UserError(
            f"{path}{led} lies outside of {' and '.join(roots)}, where tasksets may be read from: "
            "move it there, or change TRINITY_BUFFER_TASKSET_ROOTS"
        )
    if any(_is_inside(real, place) for place in KERNEL):
        raise UserError(f"{path} leads to {real}, which holds no data: give a file of rows")
    if Path(real).exists():
        _check_kind(path, Path(real).stat().st_mode)
    return real


def _is_inside(real: str, root: str) -> bool:
    return os.path.commonpath([real, root]) == root


def _check_kind(path: str, mode: int) -> None:
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        kind = KINDS.get(stat.S_IFMT(mode), "no file")
        raise UserError(f"{path} is {kind}: give a file of rows")


def open_allowed(file: Path, roots: Sequence[str]) -> BinaryIO:
    """Opens a data file, and checks the opened file, not only its path.

    Raises: UserError like `check_place`; OSError when it cannot be read.
    """
    real = check_place(str(file), roots)
    # A FIFO swapped in after the check would block, and a link could lead anywhere.
    descriptor = os.open(real, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    stream = os.fdopen(descriptor, "rb")
    mode = os.fstat(descriptor).st_mode
    opened = os.path.realpath(f"/proc/self/fd/{descriptor}")
    if not stat.S_ISREG(mode) or opened != real:
        stream.close()
        raise changed(str(file))
    return stream


def changed(file: str) -> UserError:
    """Returns the error for a file that is no longer the one that was checked."""
    return UserError(f"{file} changed while it was opened: give a file of rows that stays")
