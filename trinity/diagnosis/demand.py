"""How much a process wants of the processors, and how much of it it gets."""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

NANO = 1e-9
BUSY_SHARE = 0.2
"""Who wants less of the time than this has something else that keeps it from answering."""


@dataclass(frozen=True, slots=True)
class Demand:
    """Of all threads of a process, as far as Linux tells; elsewhere nothing is known of it."""

    worked_seconds: float = 0.0
    queued_seconds: float = 0.0
    """Ready to work, while others had the processors."""

    def __sub__(self, before: Self) -> "Demand":
        return Demand(
            max(self.worked_seconds - before.worked_seconds, 0.0),
            max(self.queued_seconds - before.queued_seconds, 0.0),
        )

    def is_busy(self, seconds: float) -> bool:
        """Whether it had or wanted a processor for a good part of that time."""
        return self.worked_seconds + self.queued_seconds > BUSY_SHARE * seconds

    @property
    def is_starved(self) -> bool:
        """Whether it waited for processors more than it worked."""
        return self.queued_seconds > self.worked_seconds


def demand_of(pid: int) -> Demand:
    """Since the process began."""
    worked = queued = 0
    for file in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        try:
            on_processor, in_queue, _ = file.read_text().split()
        except (OSError, ValueError):  # the thread is gone, or this kernel does not count
            continue
        worked += int(on_processor)
        queued += int(in_queue)
    return Demand(worked * NANO, queued * NANO)
