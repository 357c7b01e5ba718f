"""Measures memory and processor time of each kind of process below this one."""

import asyncio
from contextlib import suppress
from pathlib import Path

import psutil

LOOK_SECONDS = 0.2
KINDS = {
    "task_operators": "the pipeline's process",
    "read_rows": "the reader",
    "trinity.cli": "the client",
    "services.buffer": "the buffer",
    "postgres": "a process of Postgres",
    "nats-server": "the broker",
}
"""A part of the command line, and what it is called."""


class Peaks:
    """The most memory that each kind of process has taken so far, and its processor's time."""

    def __init__(self) -> None:
        self.mb: dict[str, float] = {}
        self._cpu_seconds: dict[tuple[str, int], float] = {}

    def cpu_seconds(self) -> dict[str, float]:
        """The processor seconds of all processes of a kind, as far as they were seen."""
        seconds: dict[str, float] = {}
        for (kind, _), value in self._cpu_seconds.items():
            seconds[kind] = seconds.get(kind, 0.0) + value
        return seconds

    async def watch(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            await asyncio.to_thread(self._look)
            await asyncio.sleep(LOOK_SECONDS)

    def _look(self) -> None:
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.Error, OSError):
                kind = _kind_of(process)
                if kind is not None:
                    self.mb[kind] = max(self.mb.get(kind, 0.0), _own_mb(process.pid))
                    times = process.cpu_times()
                    self._cpu_seconds[kind, process.pid] = times.user + times.system


def _kind_of(process: psutil.Process) -> str | None:
    line = " ".join(process.cmdline())
    return next((name for part, name in KINDS.items() if part in line), None)


def _own_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    found = [line for line in lines if line.startswith("RssAnon")]
    return float(found[0].split()[1]) * 1024 / 1e6 if found else 0.0
