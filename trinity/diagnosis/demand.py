"""CPU time that a process uses and waits for."""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

NANO = 1e-9
BUSY_SHARE = 0.2
"""A process that uses or wants a smaller share of the time is not slowed by the processors."""


@dataclass(frozen=True, slots=True)
class Demand:
    """Sums over all threads of a process, as counted by Linux; zero on other systems."""

    worked_seconds: float = 0.0
    queued_seconds: float = 0.0
    """Time ready to run while all processors were busy."""

    def __sub__(self, before: Self) -> "Demand":
        return Demand(
            max(self.worked_seconds - before.worked_seconds, 0.0),
            max(self.queued_seconds - before.queued_seconds, 0.0),
        )

    def is_busy(self, seconds: float) -> bool:
        """Returns true if the process had or wanted a processor for a good part of that time."""
        return self.worked_seconds + self.queued_seconds > BUSY_SHARE * seconds

    @property
    def is_starved(self) -> bool:
        """True if it waited for processors longer than it ran."""
        return self.queued_seconds > self.worked_seconds


def demand_of(pid: int) -> Demand:
    """Returns the demand of a process since its start."""
    worked = queued = 0
    for file in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        try:
            on_processor, in_queue, _ = file.read_text().split()
        except (OSError, ValueError):  # the thread is gone, or this kernel does not count
            continue
        worked += int(on_processor)
        queued += int(in_queue)
    return Demand(worked * NANO, queued * NANO)
