"""Inspects the processes of this machine."""

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import psutil

from trinity.diagnosis.snapshot import Condition

TAIL_BYTES = 8192
MAX_WORDS = 300
STOPPED = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
GONE = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)


class Processes:
    """A snapshot of all processes, which serves every query."""

    def __init__(self) -> None:
        self._status: dict[int, str] = {}
        self._children: dict[int, list[int]] = defaultdict(list)
        for process in psutil.process_iter(["ppid", "status"]):
            self._status[process.pid] = process.info["status"]
            self._children[process.info["ppid"]].append(process.pid)

    def condition(self, pid: int) -> Condition:
        """Returns the condition of a process."""
        status = self._status.get(pid)
        if status is None or status in GONE:
            return Condition.GONE
        return Condition.STOPPED if status in STOPPED else Condition.RUNNING

    def stopped_below(self, pid: int) -> Mapping[int, str]:
        """Returns its stopped descendants by process number, and what they are."""
        found: dict[int, str] = {}
        waiting = list(self._children[pid])
        while waiting:
            child = waiting.pop()
            waiting += self._children.get(child, [])
            if self.condition(child) is Condition.STOPPED:
                found[child] = _what(child)
        return dict(sorted(found.items()))


def _what(pid: int) -> str:
    """Returns the module or program that a process runs."""
    try:
        line = psutil.Process(pid).cmdline()
    except psutil.Error:
        return "a process"
    if "-m" in line[:-1]:
        return line[line.index("-m") + 1]
    return Path(line[0]).name if line else "a process"


def last_words(log_file: Path) -> str:
    """Returns the last line of a log."""
    try:
        with log_file.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - TAIL_BYTES))
            lines = file.read().decode(errors="replace").split("\n")
    except OSError:
        return ""
    nonempty_lines = [line.strip() for line in lines if line.strip()]
    return nonempty_lines[-1][:MAX_WORDS] if nonempty_lines else ""
