"""The memory that further processes may take."""

from contextlib import suppress
from pathlib import Path

import psutil

CGROUP = Path("/sys/fs/cgroup")


def available_bytes() -> int:
    """Returns the free memory of the machine, or that of its container where it is less."""
    free = int(psutil.virtual_memory().available)
    with suppress(OSError, KeyError, ValueError):  # no container, or one without a limit
        limit = int((CGROUP / "memory.max").read_text())
        figures = dict(map(str.split, (CGROUP / "memory.stat").read_text().splitlines()))
        used = int((CGROUP / "memory.current").read_text()) - int(figures["inactive_file"])
        free = min(free, limit - used)
    return free
