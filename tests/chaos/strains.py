"""Strains that kill nothing: a disk without room, a clock that jumps, a link that is cut."""

import importlib.util
import os
from pathlib import Path

from tests.chaos.hosts.outage import LINKS

FULL, CLOCK = "FULL", "CLOCK"
CUTS = tuple(f"{'-'.join(link)} CUT" for link in LINKS)
"""Of `tests.chaos.hosts.campaign`, where each part has a host of its own."""
DISK_FULL = f"disk {FULL}"
CLOCKED = ("explorer", "buffer", "trainer", "synchronizer")
"""Services with clocks that may be set, one at a time; ranks have the clock of their trainer."""
LONGEST_JUMP_SECONDS = 3600.0


def possible() -> tuple[str, ...]:
    """Returns the strains that this machine can have: root mounts disks, a package sets clocks."""
    if os.geteuid() != 0:
        return ()
    clocks = CLOCKED if importlib.util.find_spec("libfaketime") else ()
    return (DISK_FULL, *(f"{name} {CLOCK}" for name in clocks))


def _faketime() -> Path:
    """The library of the package, which is newer than Debian's: in that one `time.sleep` fails."""
    spec = importlib.util.find_spec("libfaketime")
    assert spec and spec.origin, "pip install libfaketime"
    return next(Path(spec.origin).parent.rglob("libfaketime.so.1"))


def clock_variables(folder: Path, service: str) -> dict[str, str]:
    """Variables with which a process takes its time of day from `set_clock`."""
    return {
        "LD_PRELOAD": str(_faketime()),
        "FAKETIME_TIMESTAMP_FILE": str(set_clock(folder, service, 0.0)),
        "FAKETIME_CACHE_DURATION": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "NO_FAKE_STAT": "1",
    }


def set_clock(folder: Path, service: str, seconds: float) -> Path:
    """Has the clock of a service, and of its processes, differ from the machine's, within 1 s."""
    file = folder / f"clock-{service}"
    file.write_text(f"{seconds:+.0f}")
    return file
