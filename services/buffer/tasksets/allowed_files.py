"""Files that a tenant names: found and opened beneath the directories that are allowed.

A path is resolved once, step by step: each name is opened in the directory before it, and links are
followed here, not by the kernel. So the file that is read is the one that was checked, even if the
path changes meanwhile.
"""

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from trinity.errors import UserError

ROOTS_VARIABLE = "TRINITY_BUFFER_TASKSET_ROOTS"
KERNEL = ("/proc", "/sys", "/dev")
"""Pseudo files there reveal facts about the machine, or block."""
KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}
MAX_LINKS = 40
"""As many as the kernel follows."""
_STEP = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class FoundPlace:
    """A file or directory that may be read."""

    descriptor: int
    """Opened with O_PATH."""
    path: str
    """Its path without links, when it was found."""
    status: os.stat_result

    def open(self, flags: int) -> int:
        """Opens the very file that was found; returns a descriptor for reading."""
        return os.open(f"/proc/self/fd/{self.descriptor}", flags | os.O_NONBLOCK | os.O_CLOEXEC)


@dataclass(frozen=True, slots=True)
class AllowedFiles:
    """Files and directories in the roots, also through links that lead nowhere else.

    files = AllowedFiles(("/data/a",))
    files.is_file(Path("/data/a/link-to-etc"))   # raises UserError, whatever is in /etc
    """

    roots: Sequence[str]

    def is_file(self, path: Path) -> bool:
        """Returns true for a file. Raises: UserError for a path that must not be read."""
        with self.found(path) as place:
            return place is not None and stat.S_ISREG(place.status.st_mode)

    def is_dir(self, path: Path) -> bool:
        """Returns true for a directory. Raises: UserError for a path that must not be read."""
        with self.found(path) as place:
            return place is not None and stat.S_ISDIR(place.status.st_mode)

    def list_names(self, directory: Path) -> list[str]:
        """Returns the sorted names in a directory."""
        with self._existing(directory) as place:
            descriptor = place.open(os.O_RDONLY | os.O_DIRECTORY)
            try:
                return sorted(os.listdir(descriptor))
            finally:
                os.close(descriptor)

    def read_text(self, path: Path) -> str:
        """Returns a text. Raises: UserError when it must not be read; OSError; ValueError."""
        with self.open(path) as stream:
            return stream.read().decode()

    def open(self, path: Path) -> BinaryIO:
        """Opens a file for reading. Raises: UserError when it must not be read; OSError."""
        with self._existing(path) as place:
            return os.fdopen(place.open(os.O_RDONLY), "rb")

    def status(self, path: Path) -> os.stat_result:
        """Returns size and times. Raises: UserError when it must not be read; OSError."""
        with self._existing(path) as place:
            return place.status

    def has(self, path: Path) -> bool:
        """Returns true if it is in the roots; false for all that is elsewhere, unasked."""
        try:
            with self.found(path) as place:
                return place is not None
        except UserError:
            return False

    @contextmanager
    def _existing(self, path: Path) -> Iterator[FoundPlace]:
        with self.found(path) as place:
            if place is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
            yield place

    @contextmanager
    def found(self, path: Path) -> Iterator[FoundPlace | None]:
        """Finds a file or directory and holds it open; None if it does not exist.

        Raises: UserError when it is outside of the roots, or neither a file nor a directory.
        """
        with ExitStack() as stack:
            roots = [_opened_root(root, stack) for root in self.roots]
            walk = stack.enter_context(closing(_Walk(str(path), roots)))
            try:
                is_there = walk.resolve()
            except OSError as error:
                raise OSError(error.errno, os.strerror(error.errno or 0), str(path)) from error
            yield walk.found() if is_there else None


@dataclass(frozen=True, slots=True)
class _Root:
    """A directory that may be read; without a descriptor if it is not there."""

    name: str
    path: str = ""
    """Its path without links."""
    descriptor: int = -1

    def below(self, names: Sequence[str]) -> Sequence[str] | None:
        """Returns the names of a path below this root; None if it lies elsewhere."""
        for top in filter(None, (self.name, self.path)):
            above = _names_of(top)
            if names[: len(above)] == above:
                return names[len(above) :]
        return None


def _opened_root(name: str, stack: ExitStack) -> _Root:
    slash = _Root("/", "/", os.open("/", _STEP))
    stack.callback(os.close, slash.descriptor)
    name = os.path.abspath(name)
    walk = stack.enter_context(closing(_Walk(name, [slash], only_ours=True)))
    return _Root(name, walk.place, walk.held[-1]) if walk.resolve() else _Root(name)


class _Walk:
    """One walk from a root to a place beneath it; only a link leads from one root to another."""

    def __init__(self, path: str, roots: Sequence[_Root], *, only_ours: bool = False) -> None:
        self._path = path
        self._roots = roots
        self._only_ours = only_ours
        """Follow no link that a tenant may have made: it may own a part of the way to its root."""
        self._num_links = 0
        self._top = ""
        self._names: list[str] = []
        self._left: list[str] = []
        """Names that are still to be followed, the next one last."""
        self.held: list[int] = []
        """Descriptors from the root on."""

    @property
    def place(self) -> str:
        """The path so far, without links."""
        return os.path.join(self._top, *self._names)

    def found(self) -> FoundPlace:
        """Returns the place at the end of the walk. Raises: UserError if it is a special file."""
        status = os.fstat(self.held[-1])
        if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
            kind = KINDS.get(stat.S_IFMT(status.st_mode), "no file")
            raise UserError(f"{self._path} is {kind}: give a file of rows")
        return FoundPlace(self.held[-1], self.place, status)

    def resolve(self) -> bool:
        """Walks to the end; returns false if the path does not exist."""
        if not self._begin(_names_of(os.path.join(os.getcwd(), self._path))):
            return False
        while self._left:
            name = self._left.pop()
            if not (self._step_up() if name == ".." else self._step_down(name)):
                return False
        return True

    def _begin(self, names: Sequence[str]) -> bool:
        """Goes to the root that a path lies in; returns false if that is missing."""
        for root in self._roots:
            if (below := root.below(names)) is not None:
                self.close()
                self._top, self._names, self._left = root.path, [], list(below[::-1])
                self.held = [] if root.descriptor < 0 else [os.dup(root.descriptor)]
                return bool(self.held)
        raise _outside_error(self._path, [root.name for root in self._roots])

    def _step_up(self) -> bool:
        if self._names:
            self._names.pop()
            os.close(self.held.pop())
            return True
        above = os.path.join(os.path.dirname(self._top), *self._left[::-1])
        return self._begin(_names_of(os.path.normpath(above)))

    def _step_down(self, name: str) -> bool:
        try:
            self.held.append(os.open(name, _STEP, dir_fd=self.held[-1]))
        except (FileNotFoundError, NotADirectoryError):
            return False
        status = os.fstat(self.held[-1])
        if stat.S_ISLNK(status.st_mode):
            target = os.readlink("", dir_fd=self.held[-1])
            os.close(self.held.pop())
            return self._follow(target, status.st_uid)
        self._names.append(name)
        if self.place in KERNEL:
            raise UserError(
                f"{self._path} leads to {self.place}, which holds no data: give a file of rows"
            )
        return True

    def _follow(self, target: str, owner: int) -> bool:
        self._num_links += 1
        if self._num_links > MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        if self._only_ours and owner not in (0, os.geteuid()):
            raise UserError(
                f"{self._path} leads through a link that is not the operator's: name the "
                f"directory itself in {ROOTS_VARIABLE}"
            )
        names = _names_of(target)
        if target.startswith("/"):
            return self._begin([*names, *self._left[::-1]])
        self._left += names[::-1]
        return True

    def close(self) -> None:
        """Closes the descriptors."""
        while self.held:
            os.close(self.held.pop())


def _names_of(path: str) -> list[str]:
    return [name for name in path.split("/") if name not in ("", ".")]


def _outside_error(path: str, roots: Sequence[str]) -> UserError:
    """Returns the error for a path outside of the roots; it does not reveal if the path exists."""
    if not roots:
        return UserError(
            f"{path} is not read: this buffer reads no files for this tenant; submit the tasks "
            f"(`trinity taskset submit`), or have the operator set {ROOTS_VARIABLE}"
        )
    names = _names_of(os.path.abspath(path))
    is_link = any(_Root(root).below(names) is not None for root in roots)
    led = " leads to a place that" if is_link else ""
    return UserError(
        f"{path}{led} lies outside of {' and '.join(roots)}, where tasksets may be read from: "
        f"move it there, or change {ROOTS_VARIABLE}"
    )
