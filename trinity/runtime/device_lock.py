"""The lock of a device that several processes share; the kernel releases it when they end.

    lock = DeviceLock(path)
    waiting = HolderWatch(path, silence_seconds=3600)
    while not lock.try_take(Holder.of_this_process("trainer", "to train step 3")):
        waiting.end_silent_holder()
        time.sleep(POLL_SECONDS)
    lock.show_life()      # now and then, while working
    lock.release()

The lock is `flock` on a file, so it ends with the process that holds it, however that ends. The
file's content describes the holder; only the holder writes it. A process that waits may show that
by a lock on a second file: a holder that could go on calls `is_wanted`, and releases the device if
so.
"""

import fcntl
import json
import logging
import os
import select
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from trinity.errors import RunFailed

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.005
"""How often a process that waits looks; a look takes some microseconds."""
DEATH_SECONDS = 60.0
"""Longest wait for a killed process to be gone: its memory on a device takes a while to free."""
MAX_HOLDER_BYTES = 4096


def device_lock_path(job_dir: Path) -> Path:
    """Returns the file of the one device that a run's engine and trainer share."""
    return job_dir / "device" / "gpu-0.lock"


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """The process that has the device, and its purpose."""

    role: str
    reason: str
    pid: int
    started: int
    """Start of the process in the kernel's ticks: a later process of its number has another."""
    host: str

    @classmethod
    def of_this_process(cls, role: str, reason: str) -> "Holder":
        """Describes the calling process."""
        pid = os.getpid()
        return cls(
            role=role, reason=reason, pid=pid, started=_start_of(pid), host=socket.gethostname()
        )

    @property
    def service(self) -> str:
        """Name of the service that the process belongs to."""
        return "trainer" if self.role == "trainer" else "explorer"

    @property
    def process(self) -> str:
        """Names the process for people."""
        return f"process {self.pid} of the {self.role} on {self.host}"


@dataclass(frozen=True, slots=True)
class ReportPlace:
    """The place of a report about a device among those of its role."""

    clock: str
    """Identifies this boot of the machine; after the next boot, counting begins at zero again."""
    sequence: int


class ReportCounter:
    """Numbers the reports of a process, above those of earlier processes of this machine.

    The clock is the kernel's, which runs from the machine's start and is never set.
    """

    def __init__(self) -> None:
        self._clock = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        self._last = 0

    def next_place(self) -> ReportPlace:
        """Returns the place of the next report; one that is sent again keeps its own."""
        self._last = max(self._last + 1, time.clock_gettime_ns(time.CLOCK_BOOTTIME))
        return ReportPlace(self._clock, self._last)


def describe_wait(path: Path, reason: str) -> tuple[str, str]:
    """Returns whom one that wants the device waits for, and a sentence that says why."""
    holder = read_holder(path)
    if holder is None:
        return "device", f"the shared GPU {reason}; it is being handed over"
    return holder.service, f"the shared GPU {reason}; {holder.process} has it {holder.reason}"


def read_holder(path: Path) -> Holder | None:
    """Returns the holder as its file says; None without one, or before it has written."""
    try:
        text = path.read_bytes()[:MAX_HOLDER_BYTES]
        return Holder(**json.loads(text)) if text else None
    except (FileNotFoundError, ValueError, TypeError):
        return None


class DeviceLock:
    """One process' handle of the lock; at most one handle of a file has the lock at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    @property
    def is_held(self) -> bool:
        """True if this handle has the lock."""
        return self._descriptor is not None

    def try_take(self, holder: Holder) -> bool:
        """Takes the lock if it is free; returns True if this handle has it."""
        if self.is_held:
            return True
        descriptor = _try_lock(self._path, fcntl.LOCK_EX)
        if descriptor is None:
            return False
        self._descriptor = descriptor
        self.describe(holder)
        return True

    def describe(self, holder: Holder) -> None:
        """Writes the purpose of holding the device; call it only while this handle has it."""
        assert self._descriptor is not None, "another process may have the device"
        _write(self._descriptor, json.dumps(asdict(holder)).encode())

    def take(self, holder: Holder, seconds: float) -> bool:
        """Tries for a while; returns True if this handle has it."""
        until = time.monotonic() + seconds
        while not self.try_take(holder):
            if time.monotonic() >= until:
                return False
            time.sleep(POLL_SECONDS)
        return True

    def release(self) -> None:
        """Releases the device, if this handle holds it."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is None:
            return
        _write(descriptor, b"")
        _unlock(descriptor)

    def show_life(self) -> None:
        """Shows that the work on the device goes on, for the holder or on its behalf."""
        with suppress(FileNotFoundError):
            os.utime(self._path)


class WantedDevice:
    """A wish for the device; it ends with its process, however that ends.

    It is only advice: a holder that could continue should release the device.
    """

    def __init__(self, path: Path) -> None:
        self._path = _wish_path(path)
        self._descriptor: int | None = None

    def show(self) -> None:
        """Shows the wish; if a holder checks for it at this moment, the next call shows it."""
        if self._descriptor is None:
            self._descriptor = _try_lock(self._path, fcntl.LOCK_SH)

    def withdraw(self) -> None:
        """Withdraws the wish, if there is one."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            _unlock(descriptor)


def is_wanted(path: Path) -> bool:
    """True if a process shows a wish for the device; only the device's holder asks."""
    descriptor = _try_lock(_wish_path(path), fcntl.LOCK_EX)
    if descriptor is None:
        return True
    _unlock(descriptor)
    return False


def _wish_path(path: Path) -> Path:
    return path.with_suffix(".wanted")


def _try_lock(path: Path, kind: int) -> int | None:
    """Returns a descriptor of the file with the lock; None where another one excludes it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _unlock(descriptor: int) -> None:
    fcntl.flock(descriptor, fcntl.LOCK_UN)  # a forked child may have the descriptor too
    os.close(descriptor)


def _write(descriptor: int, text: bytes) -> None:
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, text, 0)


class HolderWatch:
    """Watches a holder while another process waits, and ends one that shows no sign of life.

    Silence is measured by this process' clock, from the last sign that it saw.
    """

    def __init__(
        self, path: Path, *, silence_seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._path = path
        self._silence_seconds = silence_seconds
        self._clock = clock
        self._seen: tuple[Holder | None, int] = (None, 0)
        self._since = clock()

    def end_silent_holder(self) -> Holder | None:
        """Kills a holder that has been silent for too long, and waits until it is dead.

        Returns the one that was killed. Raises: RunFailed if it cannot be killed.
        """
        now = (read_holder(self._path), _modified(self._path))
        if now != self._seen:
            self._seen, self._since = now, self._clock()
        holder = now[0]
        if holder is None or self._clock() - self._since < self._silence_seconds:
            return None
        logger.error(
            "the holder of the device is killed: it gave no sign of life",
            extra={"holder": holder.process, "reason": holder.reason},
        )
        kill_and_see_dead(holder)
        return holder


def kill_and_see_dead(holder: Holder, seconds: float = DEATH_SECONDS) -> None:
    """Kills a process, unless it is gone, and waits until the kernel says that it is dead.

    Raises: RunFailed if it runs on another machine, may not be killed, or does not die.
    """
    if holder.host != socket.gethostname():
        raise RunFailed(
            f"the device is held by {holder.process}, which is not this machine: end it"
        )
    try:
        descriptor = os.pidfd_open(holder.pid)
    except ProcessLookupError:
        return
    try:
        if _start_of(holder.pid) != holder.started:  # another process has its number by now
            return
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        if not select.select([descriptor], [], [], seconds)[0]:
            raise RunFailed(
                f"{holder.process} has the device, was killed and is not dead after {seconds:g} s: "
                "its driver hangs, look at `dmesg`"
            )
    except ProcessLookupError:
        return
    except PermissionError as error:
        raise RunFailed(f"{holder.process} has the device and may not be killed: end it") from error
    finally:
        os.close(descriptor)


def _start_of(pid: int) -> int:
    """Returns when a process began, in the kernel's ticks; 0 if it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return int(text.rpartition(")")[2].split()[19])


def _modified(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0
