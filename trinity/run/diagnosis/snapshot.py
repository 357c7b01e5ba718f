"""The snapshot that a diagnosis is made from: a run's state, its processes, their CPU time."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Self

from trinity.run.state import RunReport

NANO = 1e-9
BUSY_SHARE = 0.2
"""A process that uses or wants a smaller share of the time is not slowed by the processors."""


@dataclass(frozen=True, slots=True)
class CpuDemand:
    """Sums over all threads of a process, as counted by Linux; zero on other systems."""

    worked_seconds: float = 0.0
    queued_seconds: float = 0.0
    """Time ready to run while all processors were busy."""

    def __sub__(self, before: Self) -> "CpuDemand":
        return CpuDemand(
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


def demand_of(pid: int) -> CpuDemand:
    """Returns the demand of a process since its start."""
    worked = queued = 0
    for file in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        try:
            on_processor, in_queue, _ = file.read_text().split()
        except (OSError, ValueError):  # the thread is gone, or this kernel does not count
            continue
        worked += int(on_processor)
        queued += int(in_queue)
    return CpuDemand(worked * NANO, queued * NANO)


class ProcessState(StrEnum):
    """The state of a part's process."""

    RUNNING = "running"
    STOPPED = "stopped"
    """By a signal or a debugger; it continues when told to."""
    GONE = "gone"
    FOREIGN = "foreign"
    """Not started by us, so its state is unknown."""


NEVER_ANSWERS = (ProcessState.STOPPED, ProcessState.GONE)


class ProbeState(StrEnum):
    """A part's answer to a liveness probe."""

    ANSWERS = "answers"
    REFUSES = "refuses"
    """Nothing listens there, or it reports that it cannot serve now."""
    SILENT = "silent"


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentSnapshot:
    """The broker, the database or a service."""

    name: str
    address: str
    pid: int = 0
    condition: ProcessState = ProcessState.RUNNING
    reply: ProbeState = ProbeState.ANSWERS
    detail: str = ""
    """Its text, if it refused."""
    log_file: str = ""
    last_log_line: str = ""
    """The last line of its log, if its process is gone."""
    died: "RecentExit | None" = None
    """The process before this one, if that ended by itself recently."""
    stopped: Mapping[int, str] = field(default_factory=dict)
    """Program names of stopped processes that it had started, by process number."""
    asked_seconds: float = 0.0
    """Time that it was given to answer."""
    demand: CpuDemand = field(default_factory=CpuDemand)
    """Its CPU demand while it was probed."""

    @property
    def is_busy(self) -> bool:
        """True if it is alive and has work, but has not answered."""
        silent = self.reply is ProbeState.SILENT and self.condition is ProcessState.RUNNING
        return silent and self.demand.is_busy(self.asked_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentExit:
    """A process that was replaced by a new one."""

    pid: int
    last_log_line: str
    seconds_ago: float


class SystemSnapshot(RunReport):
    """A run at one moment, with the parts that run it."""

    parts: tuple[ComponentSnapshot, ...] = ()
    """Each after those that it depends on."""
    full_disk: str = ""
    """The run's directory, if its disk is full."""

    @classmethod
    def with_parts(
        cls, state: RunReport, parts: Iterable[ComponentSnapshot], full_disk: str = ""
    ) -> Self:
        """Adds the parts to a state."""
        return cls(**dict(state), parts=tuple(parts), full_disk=full_disk)

    def part(self, name: str) -> ComponentSnapshot | None:
        """Returns the part with that name."""
        return next((part for part in self.parts if part.name == name), None)
