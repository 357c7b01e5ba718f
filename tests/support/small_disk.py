"""A disk that can be filled without harm to the machine's."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from errno import ENOSPC
from pathlib import Path

DISK_BYTES = 4 << 30
PIECE_BYTES = 64 << 20


@contextmanager
def small_disk(place: Path) -> Iterator[None]:
    """Mounts an ext4 file system of 4 GiB, which takes room only as it is used; as root."""
    place.mkdir(parents=True)
    image = place.with_suffix(".img")
    with image.open("wb") as file:
        file.truncate(DISK_BYTES)
    _run("mkfs.ext4", "-q", "-m", "0", str(image))
    _run("mount", "-o", "loop", str(image), str(place))
    try:
        yield
    finally:
        _run("umount", "--lazy", str(place))
        image.unlink()


def fill(place: Path) -> Path:
    """Takes all room that is left; deleting the file that is returned gives it back."""
    ballast, piece = place / "ballast", PIECE_BYTES
    with ballast.open("wb") as file:
        while piece:
            try:
                os.posix_fallocate(file.fileno(), file.seek(0, os.SEEK_END), piece)
            except OSError as error:
                if error.errno != ENOSPC:
                    raise
                piece //= 2
    return ballast


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
