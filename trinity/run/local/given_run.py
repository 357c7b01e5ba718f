"""Runs that this user did not make here: their database is code, and opened as a copy in a box.

A database folder has a mark file, and the user's state folder records its inode number and change
time, which only the kernel sets. A copy, a download or an unpacked archive has other values,
whatever its content.
"""

import contextlib
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from trinity.errors import UserError
from trinity.run.local.binaries import postgres_programs
from trinity.runtime.process.box import Box, box_refusal

TRUSTED_VARIABLE = "TRINITY_TRUSTED_RUNS"
"""Folders, separated as in PATH, with runs whose databases this user trusts."""
MARK = "made-here"
_NAME = re.compile(r"[0-9a-f]{32}")
_SETTINGS = ("postgresql.conf", "postgresql.auto.conf", "pg_hba.conf", "pg_ident.conf")
"""Replaced in a copy: they may name commands that are executed when the database starts."""
_LEFT_OUT = (*_SETTINGS, "postmaster.pid", "postmaster.opts")
_REFUSED = ("recovery.signal", "standby.signal", "recovery.conf", "backup_label", "tablespace_map")
_OPEN_TO_ITS_USER = "local all all trust\n"
"""Access to the copy: its only socket lies in a folder of the user's."""


def register_database(folder: Path) -> None:
    """Marks a database folder as made here; where no state can be kept, it stays unmarked."""
    name, mark = secrets.token_hex(16), folder / MARK
    with contextlib.suppress(OSError, RuntimeError):
        state = _state_folder()
        state.mkdir(parents=True, exist_ok=True, mode=0o700)
        mark.unlink(missing_ok=True)
        mark.write_text(name)
        (state / name).write_text(_identity(mark.stat()))


def is_own_database(folder: Path) -> bool:
    """Returns true for a database that this user made here or trusts, or for a missing one."""
    return not (folder / "data").exists() or is_registered(folder) or _is_trusted(folder)


def is_registered(folder: Path) -> bool:
    """Returns true for one that this user made here."""
    try:
        descriptor = os.open(folder / MARK, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            name, found = os.read(descriptor, 64).decode(), os.fstat(descriptor)
        finally:
            os.close(descriptor)
        if found.st_uid != os.geteuid() or not _NAME.fullmatch(name):
            return False
        return (_state_folder() / name).read_text() == _identity(found)
    except (OSError, RuntimeError, ValueError):
        return False


def _is_trusted(folder: Path) -> bool:
    trusted = os.environ.get(TRUSTED_VARIABLE, "").split(os.pathsep)
    return any(folder.resolve().is_relative_to(Path(path).resolve()) for path in trusted if path)


def _identity(mark: os.stat_result) -> str:
    return f"{mark.st_ino} {mark.st_ctime_ns}"


def _state_folder() -> Path:
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home) / "trinity" / "databases"


def database_folder(home: Path) -> Path:
    """Returns the folder of the database of a stack's directory."""
    return home / "infra" / "postgres"


def opening_question(home: Path) -> str:
    """Returns what to ask before a run is opened; empty if this user made it here."""
    if is_own_database(database_folder(home)):
        return ""
    return (
        f"{home} was not made by you on this machine, or was copied. A database can hold code of "
        "others. It is opened as a copy, without a network and without your files. Open it?"
    )


def refuse_given_database(home: Path, purpose: str) -> None:
    """Refuses to use a database that this user did not make, other than to look at a copy.

    Raises: UserError that says how to trust it.
    """
    if not is_own_database(database_folder(home)):
        raise UserError(
            f"{home} was not made by this user on this machine, or was copied, and its database "
            f"may hold code of others: {purpose} only if you know where it is from, with "
            f"{TRUSTED_VARIABLE}={home} (`trinity view` opens a copy in a box)"
        )


def database_box(folder: Path) -> Box:
    """Returns the box of a database program that may write to this folder."""
    package = postgres_programs().parents[1]
    return Box(
        has_children=True,
        has_channel=False,
        memory_bytes=4 * 1024**3,
        readable=(str(package), str(package.with_name(f"{package.name}.libs"))),
        writable=(str(folder),),
    )


@contextlib.contextmanager
def copied_run(home: Path) -> Iterator[Path]:
    """Yields a directory with a copy of a run's database, which is removed after the block.

    Raises: UserError where the database is refused, or no box can be made around it.
    """
    with tempfile.TemporaryDirectory(prefix="trinity-copy-", ignore_cleanup_errors=True) as made:
        folder = database_folder(Path(made))
        box = database_box(folder)
        folder.mkdir(parents=True)
        if refusal := box_refusal(box, str(postgres_programs() / "postgres"), "--version"):
            raise UserError(
                f"{home} was not made by this user on this machine, and this machine allows no box "
                f"around its database ({refusal}): open it where user namespaces are allowed, or, "
                f"if you know where it is from, with {TRUSTED_VARIABLE}={home}"
            )
        try:
            _copy_database(database_folder(home) / "data", folder / "data")
        except OSError as error:
            raise UserError(f"cannot copy the database of {home} to {made}: {error}") from error
        for path in (folder, *folder.rglob("*")):
            os.chown(path, *box.owner)
        yield Path(made)


def _copy_database(data: Path, target: Path) -> None:
    """Copies regular files and folders; never follows links, even if the source changes."""
    for place, folders, files, descriptor in os.fwalk(data, follow_symlinks=False):
        below = Path(place).relative_to(data)
        (target / below).mkdir(mode=0o700)
        for name in (*folders, *files):
            mode = os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_mode
            if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)) or _is_refused(below / name):
                raise UserError(
                    f"{Path(place) / name} is in no database of a run that has stopped, and could "
                    "make this one read other files or execute commands: it is not opened"
                )
        for name in files:
            if str(below / name) not in _LEFT_OUT:
                _copy_file(name, descriptor, target / below / name)
    for name in _SETTINGS:
        (target / name).write_text(_OPEN_TO_ITS_USER if name == "pg_hba.conf" else "")


def _is_refused(path: Path) -> bool:
    return str(path) in _REFUSED or path.parent == Path("pg_tblspc")


def _copy_file(name: str, folder: int, target: Path) -> None:
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    with os.fdopen(descriptor, "rb") as source, target.open("xb") as made:
        target.chmod(0o600)
        shutil.copyfileobj(source, made, 1024 * 1024)
