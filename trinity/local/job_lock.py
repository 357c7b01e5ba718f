"""A lock that allows one stack at a time in one directory."""

import fcntl
import os
import time
from pathlib import Path

from trinity.errors import UserError

LOCK_FILE = "run.lock"
_CLEAN_UP_SECONDS = 30.0
_NOBODY = b"-"
"""Written in place of a process number when there is none."""
_MOST_BYTES = 64
"""Enough for a process number and its start time."""


class JobLock:
    """A lock that ends with the processes that hold it, however they end.

    The supervisor inherits it: after the launcher was killed, the next start waits until the
    supervisor has stopped what was running.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    @classmethod
    def acquire(cls, job_dir: Path) -> "JobLock":
        """Takes the lock; blocks while an earlier run in the directory is being cleaned up.

        Raises: UserError naming the process that runs there.
        """
        descriptor = os.open(job_dir / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            _lock(descriptor, job_dir)
        except BaseException:
            os.close(descriptor)
            raise
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()} {_start_of(os.getpid())}".encode(), 0)
        return cls(descriptor)

    def release(self) -> None:
        """Releases the lock; processes of this run that are still ending hold it briefly."""
        os.pwrite(self.descriptor, _NOBODY, 0)
        os.ftruncate(self.descriptor, len(_NOBODY))
        os.close(self.descriptor)


def holder(job_dir: Path) -> int | None:
    """Returns the live process that has written itself into the lock, or None."""
    try:
        return _living((job_dir / LOCK_FILE).read_bytes())
    except OSError:
        return None


def _living(written: bytes) -> int | None:
    """Returns the recorded process, unless it is gone or its number was reused."""
    number, _, started = written.decode(errors="replace").partition(" ")
    if not number.isdecimal():
        return None
    now = _start_of(int(number))
    # Earlier versions wrote no start time.
    return int(number) if now and started in ("", now) else None


def _start_of(process: int) -> str:
    """Returns the process's start time in clock ticks, or an empty text when it is gone."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""
    state, *fields = stat[stat.rindex(")") + 2 :].split()
    return "" if state in "ZX" else fields[18]


def refuse_second(job_dir: Path) -> None:
    """Raises early what `acquire` would raise.

    Raises: UserError naming the process that runs there.
    """
    process = holder(job_dir)
    if process is None:
        return
    descriptor = os.open(job_dir / LOCK_FILE, os.O_RDWR)
    try:
        # A number that an earlier version wrote may be stale.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        raise _taken(process, job_dir) from None
    finally:
        os.close(descriptor)


def _taken(process: int, job_dir: Path) -> UserError:
    return UserError(
        f"another `trinity run` (process {process}) runs in {job_dir}: `trinity status` shows "
        "it; wait for it, stop it, or give this run another `name`"
    )


def _left_over(job_dir: Path) -> UserError:
    lock = job_dir / LOCK_FILE
    return UserError(
        f"processes left over from an earlier run hold {lock} for longer than "
        f"{_CLEAN_UP_SECONDS:g} s, though its `trinity run` is gone: end them "
        f"(`fuser -v {lock}` shows them)"
    )


def _lock(descriptor: int, job_dir: Path) -> None:
    deadline = time.monotonic() + _CLEAN_UP_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if process := _living(os.pread(descriptor, _MOST_BYTES, 0)):
                raise _taken(process, job_dir) from None
            if time.monotonic() > deadline:
                raise _left_over(job_dir) from None
            time.sleep(0.05)
