"""Finds and kills orphaned processes, and locks a job directory for one launcher."""

import ctypes
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from trinity.errors import UserError
from trinity.runtime.process.child_process import kill_marked

_PR_SET_CHILD_SUBREAPER = 36
_MARK = "TRINITY_LOCAL_JOB"
LOCK_FILE = "run.lock"
_CLEAN_UP_SECONDS = 30.0
_NOBODY = b"-"
"""Written instead of a process number when the lock is released."""
_MAX_BYTES = 64
"""Enough for a process number, its start time and its purpose."""
_VIEWS = b"views"
"""Written behind the number of a process that gives the lock up when a run asks for it."""
WANTED_FILE = "run.wanted"
"""Exists while a run waits for a process that only views the directory."""


def become_subreaper() -> None:
    """Adopts every descendant that loses its parent, instead of leaving it to init."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "cannot adopt orphaned processes")


def reap() -> Iterator[tuple[int, int]]:
    """Collects ended children: their process numbers and exit codes (negative: the signal)."""
    while True:
        try:
            pid, state = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        yield pid, os.waitstatus_to_exitcode(state)


def kill_orphans(leaders: set[int]) -> None:
    """Kills adopted processes that belong to no living child's session, with their descendants.

    Every child leads its own session, so `leaders` are the sessions to leave alone.
    """
    for child in psutil.Process().children():
        with suppress(psutil.NoSuchProcess, ProcessLookupError):
            if not leaders & {child.pid, os.getsid(child.pid)}:
                descendants = child.children(recursive=True)
                child.kill()
                _kill_all(descendants)


def kill_descendants() -> bool:
    """Kills everything below this process; returns true if anything was alive."""
    return _kill_all(psutil.Process().children(recursive=True))


def _kill_all(processes: list[psutil.Process]) -> bool:
    was_alive = False
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            if process.status() != psutil.STATUS_ZOMBIE:
                process.kill()
                was_alive = True
    return was_alive


def job_environment(job_dir: Path) -> dict[str, str]:
    """Returns the environment of every process of a stack, which its descendants inherit.

    SPT_NOENV keeps programs that rename themselves (vLLM's engine) from overwriting the mark.
    """
    return {_MARK: str(job_dir), "SPT_NOENV": "1"}


def kill_orphans_of_job(job_dir: Path) -> int:
    """Kills every process with this directory's mark; call it with the directory locked."""
    return kill_marked(f"{_MARK}={job_dir}")


class JobLock:
    """A lock that ends with the processes that hold it, however they end.

    The supervisor inherits it: after the launcher was killed, the next start waits until the
    supervisor has stopped the processes of the run. A process that only views gives it up when a
    run asks for it (`is_wanted`).
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    @classmethod
    def acquire(cls, job_dir: Path, *, only_views: bool = False) -> "JobLock":
        """Takes the lock; blocks while an earlier run there is cleaned up, or a viewer gives way.

        Raises: UserError naming the process that runs there.
        """
        descriptor = os.open(job_dir / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            _lock(descriptor, job_dir, may_ask=not only_views)
        except BaseException:
            os.close(descriptor)
            raise
        os.ftruncate(descriptor, 0)
        holder = f"{os.getpid()} {_start_of(os.getpid())}".encode()
        os.pwrite(descriptor, b" ".join([holder, _VIEWS]) if only_views else holder, 0)
        with suppress(OSError):
            (job_dir / WANTED_FILE).unlink(missing_ok=True)
        return cls(descriptor)

    def release(self) -> None:
        """Releases the lock; processes of this run that are still ending hold it briefly."""
        os.pwrite(self.descriptor, _NOBODY, 0)
        os.ftruncate(self.descriptor, len(_NOBODY))
        os.close(self.descriptor)


def lock_owner_pid(job_dir: Path) -> int | None:
    """Returns the live process that has written itself into the lock, or None."""
    try:
        return _living((job_dir / LOCK_FILE).read_bytes())
    except OSError:
        return None


def viewer_pid(job_dir: Path) -> int | None:
    """Returns the live process that holds the lock only to view the run, or None."""
    try:
        written = (job_dir / LOCK_FILE).read_bytes()
    except OSError:
        return None
    return _living(written) if _is_viewers(written) else None


def is_wanted(job_dir: Path) -> bool:
    """Returns true if a run waits for the lock that a viewer holds."""
    return (job_dir / WANTED_FILE).exists()


def _is_viewers(written: bytes) -> bool:
    return written.split(b" ")[2:] == [_VIEWS]


def _living(written: bytes) -> int | None:
    """Returns the recorded process, unless it is gone or its number was reused."""
    number, _, rest = written.decode(errors="replace").partition(" ")
    started = rest.partition(" ")[0]
    if not number.isdecimal():
        return None
    return int(number) if started and started == _start_of(int(number)) else None


def _start_of(process: int) -> str:
    """Returns the process's start time in clock ticks, or an empty text when it is gone."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""
    state, *fields = stat[stat.rindex(")") + 2 :].split()
    return "" if state in "ZX" else fields[18]


def refuse_if_locked(job_dir: Path) -> None:
    """Raises early what `acquire` would raise.

    Raises: UserError naming the process that runs there.
    """
    process = lock_owner_pid(job_dir)
    if process is None or viewer_pid(job_dir) is not None:
        return
    descriptor = os.open(job_dir / LOCK_FILE, os.O_RDWR)
    try:
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


def _held_by_viewer(process: int, job_dir: Path) -> UserError:
    return UserError(
        f"process {process} views the run in {job_dir} and has not closed it within "
        f"{_CLEAN_UP_SECONDS:g} s: end that process, and start again"
    )


def _lock(descriptor: int, job_dir: Path, *, may_ask: bool) -> None:
    deadline = time.monotonic() + _CLEAN_UP_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            written = os.pread(descriptor, _MAX_BYTES, 0)
            process = _living(written)
            gives_way = may_ask and _is_viewers(written)
            if process and not gives_way:
                raise _taken(process, job_dir) from None
            if time.monotonic() > deadline:
                raise (
                    _held_by_viewer(process, job_dir) if process else _left_over(job_dir)
                ) from None
            if process:
                (job_dir / WANTED_FILE).touch()
            time.sleep(0.05)
