"""One stack at a time in one directory."""

import fcntl
import os
import time
from pathlib import Path

from trinity.errors import UserError

LOCK_FILE = "run.lock"
_CLEAN_UP_SECONDS = 30.0
_NOBODY = b"-"
"""Written in place of a process number, it is nobody's."""


class JobLock:
    """A lock that ends with the processes that hold it, however they end.

    The supervisor inherits it: after the launcher was killed the next start waits until the
    supervisor has stopped what was running.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    @classmethod
    def acquire(cls, job_dir: Path) -> "JobLock":
        """Take the lock; blocks while an earlier run in the directory is being cleaned up.

        Raises: UserError naming the process that runs there.
        """
        descriptor = os.open(job_dir / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            _lock(descriptor, job_dir)
        except BaseException:
            os.close(descriptor)
            raise
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        return cls(descriptor)

    def release(self) -> None:
        """Give it up; processes of this run that are still ending hold it a little longer."""
        os.pwrite(self.descriptor, _NOBODY, 0)
        os.ftruncate(self.descriptor, len(_NOBODY))
        os.close(self.descriptor)


def holder(job_dir: Path) -> int | None:
    """The process that has written itself into the lock and lives; None without one."""
    try:
        written = (job_dir / LOCK_FILE).read_text()
    except OSError:
        return None
    return int(written) if written.isdigit() and Path(f"/proc/{written}").exists() else None


def refuse_second(job_dir: Path) -> None:
    """Say early what `acquire` would find.

    Raises: UserError naming the process that runs there.
    """
    process = holder(job_dir)
    if process is None:
        return
    descriptor = os.open(job_dir / LOCK_FILE, os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)  # a number may be another's by now
    except BlockingIOError:
        raise _taken(str(process), job_dir) from None
    finally:
        os.close(descriptor)


def _taken(process: str, job_dir: Path) -> UserError:
    return UserError(
        f"another `trinity run` (process {process}) works in {job_dir}: `trinity status` shows "
        "it; wait for it, stop it, or give this run another `name`"
    )


def _lock(descriptor: int, job_dir: Path) -> None:
    deadline = time.monotonic() + _CLEAN_UP_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            holder = os.pread(descriptor, 20, 0).decode()
            is_alive = not holder or Path(f"/proc/{holder}").exists()
            if is_alive or time.monotonic() > deadline:
                raise _taken(holder, job_dir) from None
            time.sleep(0.05)
