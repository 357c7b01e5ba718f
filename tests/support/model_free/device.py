"""A device that is simulated: it fails when two processes use it at the same time.

Each process that wakes up enters its name in a file, and takes it out when it sleeps. A name whose
process is dead does not count, as the memory of a dead process is free. The file has a lock of its
own, which has nothing to do with the one under test. What happened is kept, with times.
"""

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil


class DeviceInUse(RuntimeError):
    """Two processes were awake on one device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceEvent:
    """Something that a process did on the device."""

    at: float
    """By the machine's monotonic clock."""
    pid: int
    role: str
    what: str
    """`awake`, `asleep`, `clash` where another process was awake, `kept` for unfinished work."""


class SimulatedDevice:
    """The device as one process sees it."""

    def __init__(self, folder: Path, role: str) -> None:
        self._folder = folder
        self._role = role
        self.is_awake = False

    def wake(self) -> None:
        """Uses the device from now on. Raises: DeviceInUse."""
        with self._locked():
            others = [
                name
                for name in self._folder.glob("*.awake")
                if name != self._mark and _is_alive(name)
            ]
            self._log("clash" if others else "awake")
            if others:
                raise DeviceInUse(f"{self._role} woke up beside {others[0].stem}")
            self._mark.write_text(str(psutil.Process().create_time()))
        self.is_awake = True

    def sleep(self) -> None:
        """Uses it no longer."""
        with self._locked():
            self._mark.unlink(missing_ok=True)
            self._log("asleep")
        self.is_awake = False

    def note(self, what: str) -> None:
        """Adds an event of another kind."""
        with self._locked():
            self._log(what)

    def check_awake(self) -> None:
        """Fails where work is done without the device."""
        assert self.is_awake, f"{self._role} works while it sleeps"

    @property
    def _mark(self) -> Path:
        return self._folder / f"{self._role}-{os.getpid()}.awake"

    def _log(self, what: str) -> None:
        event = DeviceEvent(at=time.monotonic(), pid=os.getpid(), role=self._role, what=what)
        with (self._folder / "events").open("a") as file:
            file.write(json.dumps(asdict(event)) + "\n")

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / "mutex").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def device_folder(model_path: str | Path) -> Path:
    """Folder of the device that those share who use this model."""
    return Path(model_path).parent / "simulated-device"


def events_of(folder: Path) -> list[DeviceEvent]:
    """Everything that happened on a device, in order."""
    file = folder / "events"
    lines = file.read_text().splitlines() if file.exists() else []
    return [DeviceEvent(**json.loads(line)) for line in lines]


def _is_alive(mark: Path) -> bool:
    try:
        process = psutil.Process(int(mark.stem.rpartition("-")[2]))
        is_same = str(process.create_time()) == mark.read_text()
        return is_same and process.status() != psutil.STATUS_ZOMBIE
    except (psutil.NoSuchProcess, FileNotFoundError):
        return False
