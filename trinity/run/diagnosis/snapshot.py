"""The snapshot that a diagnosis is made from: components, members, waits, CPU time."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Self

NANO = 1e-9
BUSY_SHARE = 0.2
"""A process that uses or wants a smaller share of the time is not slowed by the processors."""
NEVER = -1.0


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
    """Not started by us: nothing is known of it."""


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
    """Stopped processes that it had started, with what they are."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitSnapshot:
    """Something that a member waits for."""

    owner: str
    waits_for: str
    reason: str
    waited_seconds: float
    deadline_seconds: float = 0.0
    """Time until it gives up; 0 when it never does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedWaitSnapshot:
    """A wait that has ended."""

    role: str
    """Of the process that waited."""
    owner: str
    waits_for: str
    reason: str
    waited_seconds: float
    ended_seconds_ago: float
    stage: str = ""
    experiment_id: str = ""
    """Empty if its process worked on none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSnapshot:
    """A service as it described itself `silent_seconds` ago."""

    role: str
    activity: str
    address: str = ""
    experiment_id: str = ""
    stage: str = ""
    silent_seconds: float = 0.0
    waits: tuple[WaitSnapshot, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentSnapshot:
    """One experiment."""

    id: str
    label: str
    state: str
    reason: str = ""
    stage: str = ""
    """The running stage."""
    roles: tuple[str, ...] = ()
    """Roles that have not finished that stage."""
    turn: str = ""
    """The turn on a device that engine and trainer share, in words; empty without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageProgress:
    """The open work of one stage, and its progress."""

    experiment_id: str
    stage: str
    num_pending: int = 0
    num_leased: int = 0
    trained_step: int = 0
    total_steps: int = 0
    step_age_seconds: float = NEVER
    step_seconds: float = 0.0
    num_recent_runs: int = 0
    num_recent_lost: int = 0
    recent_loss: str = ""
    refill_round: int = 0
    num_refused: int = 0
    """Results in the dead-letter table."""
    refusal: str = ""
    """The reason for the newest of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemSnapshot:
    """A run at one moment; parts that could not be queried are None."""

    parts: tuple[ComponentSnapshot, ...]
    """Each after those that it depends on."""
    members: tuple[MemberSnapshot, ...] | None = None
    experiments: tuple[ExperimentSnapshot, ...] | None = None
    """Newest first."""
    work: tuple[StageProgress, ...] | None = None
    unanswered: str = ""
    """The reason why something could not be queried."""
    full_disk: str = ""
    """The run's directory, if its disk is full."""
    ended_waits: tuple[EndedWaitSnapshot, ...] = ()
    """The newest first; empty where the synchronizer stores none."""

    def part(self, name: str) -> ComponentSnapshot | None:
        """Returns the part with that name."""
        return next((part for part in self.parts if part.name == name), None)

    @property
    def running(self) -> ExperimentSnapshot | None:
        """The experiment that is worked on: the oldest running one."""
        running = [
            experiment for experiment in self.experiments or () if experiment.state == "running"
        ]
        return running[-1] if running else None

    @property
    def own_ended_waits(self) -> tuple[EndedWaitSnapshot, ...]:
        """The waits that ended in the experiment that is worked on, and those of idle processes."""
        mine = ("", self.running.id) if self.running is not None else None
        return tuple(
            wait for wait in self.ended_waits if mine is None or wait.experiment_id in mine
        )

    @property
    def stage_progress(self) -> StageProgress | None:
        """The open work of the running stage."""
        running = self.running
        if running is None:
            return None
        mine = [work for work in self.work or () if work.experiment_id == running.id]
        return next((work for work in mine if work.stage == running.stage), None)
