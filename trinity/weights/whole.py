"""Versions that are differences, made whole: in memory that a host's engines share, or in scratch.

/dev/shm/.trinity-weights-1000-5f0a7c.../  for each user and folder of weights
    model.safetensors, config.json, ...    the newest version that an engine has loaded
    model.safetensors.xor.zst, delta.json  the difference that it has taken in; written last

A scratch directory is one load's own. Each directory is locked while a process uses it, which the
kernel ends with its process; what has no user is removed.
"""

import fcntl
import os
import shutil
import socket
import tempfile
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import zstandard
from blake3 import blake3

from trinity.errors import ManifestError
from trinity.weights.delta import SUFFIX, apply_delta, check_applied, flip_bits, read_record
from trinity.weights.identity import HasRoots
from trinity.weights.manifest import MANIFEST_NAME, link_or_copy
from trinity.weights.stored import DELTA_NAME, is_delta

SHARED_MEMORY = Path("/dev/shm")
PREFIX = ".trinity-weights-"
TURN_NAME = ".turn"
TURN_SECONDS = 60.0
"""Until another version is loaded by others of this host; after that scratch is used."""
RETRY_SECONDS = 0.05


@contextmanager
def whole_model(directory: Path, weights: HasRoots, scratch: Path | None = None) -> Iterator[Path]:
    """Yields a directory with all files: a delta is applied to its base on the disk.

    Raises: ManifestError if the result is not these weights.
    """
    if not is_delta(directory):
        yield directory
        return
    has_room = _has_room(SHARED_MEMORY, read_record(directory).num_bytes)
    place = scratch or (SHARED_MEMORY if has_room else Path(tempfile.gettempdir()))
    with _scratch_in(place, directory.name) as made:
        apply_delta(directory, made)
        check_applied(directory, made, weights)
        yield made


class SharedModel:
    """The newest version of a folder of weights, which a host's engines load from the same memory.

    A version takes the place of the one before: that one's difference is taken back, and the new
    one is applied, in the same bytes. So the base is read once, and the memory is that of a model.
    Nothing there is trusted: every tensor is compared before each load, and what does not verify
    is made again from the disk.

        shared = SharedModel()
        with shared.whole_model(weights.path, weights) as directory:
            ...  # all files of the version
    """

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._leave: weakref.finalize[[Path, int], SharedModel] | None = None

    @contextmanager
    def whole_model(self, directory: Path, weights: HasRoots) -> Iterator[Path]:
        """Yields a directory with all files; in scratch where shared memory cannot be used.

        Raises: ManifestError if the result is not these weights.
        """
        folder = self._join(directory) if is_delta(directory) else None
        if folder is not None:
            with (folder / TURN_NAME).open("w") as turn:
                if _bring(turn.fileno(), folder, directory, weights):
                    yield folder
                    return
        with whole_model(directory, weights) as made:
            yield made

    def close(self) -> None:
        """Leaves the memory, which the last one to leave removes."""
        if self._leave is not None:
            self._leave()
        self._folder = None

    def _join(self, directory: Path) -> Path | None:
        """Returns the folder that this host's engines share; None where there can be none."""
        named = blake3(str(directory.parent.resolve()).encode()).hexdigest(length=16)
        folder = SHARED_MEMORY / f"{PREFIX}{os.getuid()}-{named}"
        if folder == self._folder:
            return folder
        self.close()
        if not folder.exists() and not _has_room(SHARED_MEMORY, read_record(directory).num_bytes):
            return None
        try:
            descriptor = _locked(folder, fcntl.LOCK_SH)
        except OSError:  # a link, or another user's
            return None
        if os.fstat(descriptor).st_uid != os.getuid():
            os.close(descriptor)
            return None
        self._folder = folder
        self._leave = weakref.finalize(self, _remove_if_unused, folder, descriptor)
        return folder


def remove_unused(place: Path = SHARED_MEMORY) -> None:
    """Removes what killed processes of this user left in shared memory."""
    for path in place.glob(f"{PREFIX}*"):
        with suppress(OSError):
            _remove_if_unused(path, os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY))


def _remove_if_unused(folder: Path, descriptor: int) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    except BlockingIOError:
        pass  # another process has it
    finally:
        os.close(descriptor)


def _locked(folder: Path, how: int) -> int:
    """Creates a directory and locks it, until the descriptor is closed."""
    while True:
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        with suppress(FileNotFoundError):  # removed at this moment, as also in the next lines
            descriptor = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY)
            fcntl.flock(descriptor, how)
            if os.fstat(descriptor).st_nlink:
                return descriptor
            os.close(descriptor)


def _bring(turn: int, folder: Path, directory: Path, weights: HasRoots) -> bool:
    """Makes the folder hold a version, and keeps it so while `turn` is open.

    Returns False where others use another version for long, or memory has no room any more.
    """
    until, is_made = time.monotonic() + TURN_SECONDS, False
    while time.monotonic() < until:
        if _try_lock(turn, fcntl.LOCK_SH) and _holds(folder, directory):
            if is_made or _is_whole(folder, directory, weights):
                return True
            (folder / DELTA_NAME).unlink(missing_ok=True)
        if not _try_lock(turn, fcntl.LOCK_EX):
            fcntl.flock(turn, fcntl.LOCK_UN)
            time.sleep(RETRY_SECONDS)
            continue
        try:
            _hold(folder, directory, weights)
        except OSError:  # no room
            _empty(folder)
            return False
        is_made = True
    return False


def _try_lock(descriptor: int, how: int) -> bool:
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holds(folder: Path, directory: Path) -> bool:
    try:
        return read_record(folder) == read_record(directory)
    except ManifestError:
        return False


def _is_whole(folder: Path, directory: Path, weights: HasRoots) -> bool:
    try:
        check_applied(directory, folder, weights)
    except ManifestError:
        return False
    return True


def _hold(folder: Path, directory: Path, weights: HasRoots) -> None:
    """Puts a version in the place of the held one, or makes it from the files on the disk.

    Raises: ManifestError if these do not give it, OSError without room.
    """
    try:
        is_whole = _change(folder, directory) and _is_whole(folder, directory, weights)
    except (OSError, ValueError, zstandard.ZstdError):
        is_whole = False
    try:
        if not is_whole:
            _empty(folder)
            apply_delta(directory, folder)
            check_applied(directory, folder, weights)
            _copy(folder, directory)
        shutil.copyfile(directory / DELTA_NAME, folder / DELTA_NAME)
    except ManifestError:
        _empty(folder)
        raise


def _change(folder: Path, directory: Path) -> bool:
    """Takes a difference back, and applies another one; returns False for one of another base."""
    try:
        held, new = read_record(folder), read_record(directory)
    except ManifestError:
        return False
    old, differences = (sorted(at.glob(f"*{SUFFIX}")) for at in (folder, directory))
    names = [path.name.removesuffix(SUFFIX) for path in old]
    is_alike = [path.name.removesuffix(SUFFIX) for path in differences] == names
    is_alike &= held.base_version == new.base_version
    if not is_alike or held.base_incarnation != new.base_incarnation:
        return False
    (folder / DELTA_NAME).unlink()
    for name, *both in zip(names, old, differences, strict=True):
        flip_bits(folder / name, *both)
    _copy(folder, directory)
    return True


def _copy(folder: Path, directory: Path) -> None:
    for path in directory.iterdir():
        if path.name not in (MANIFEST_NAME, DELTA_NAME):
            (folder / path.name).unlink(missing_ok=True)
            link_or_copy(path, folder / path.name)


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        if path.name != TURN_NAME:
            path.unlink(missing_ok=True)


def _has_room(place: Path, num_bytes: int) -> bool:
    """Returns True if so many bytes fit into memory, with a fifth to spare."""
    if not place.is_dir():
        return False
    free = min(shutil.disk_usage(place).free, psutil.virtual_memory().available)
    return free > 1.2 * num_bytes


@contextmanager
def _scratch_in(place: Path, version: str) -> Iterator[Path]:
    """Yields a directory of this process; removes those of this host's processes that were killed.

    Next to weights, the trainer removes it with its version, as the host may not come back.
    """
    host = socket.gethostname()
    for left in place.glob(f"{PREFIX}*@{host}-*"):
        with suppress(OSError):
            _remove_if_unused(left, os.open(left, os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY))
    made = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{version}@{host}-", dir=place))
    descriptor = _locked(made, fcntl.LOCK_EX)
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
        os.close(descriptor)


def scratch_of(directory: Path) -> Iterator[Path]:
    """Yields what hosts have left or still use of a version next to it."""
    yield from directory.parent.glob(f"{PREFIX}{directory.name}@*")
