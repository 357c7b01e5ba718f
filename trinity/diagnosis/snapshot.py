"""Everything that a diagnosis is made from, as it was at one moment."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from trinity.diagnosis.demand import Demand

NEVER = -1.0


class Condition(StrEnum):
    """How the process of a part is."""

    RUNNING = "running"
    STOPPED = "stopped"
    """By a signal or a debugger; it goes on when it is told to."""
    GONE = "gone"
    FOREIGN = "foreign"
    """Started by somebody else: nothing is known of it."""


NEVER_ANSWERS = (Condition.STOPPED, Condition.GONE)


class Reply(StrEnum):
    """What a part says when it is asked for a sign of life."""

    ANSWERS = "answers"
    REFUSES = "refuses"
    """Nothing listens there, or it says that it cannot serve now."""
    SILENT = "silent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The broker, the database or a service."""

    name: str
    address: str
    pid: int = 0
    condition: Condition = Condition.RUNNING
    reply: Reply = Reply.ANSWERS
    detail: str = ""
    """What it said instead of an answer."""
    log_file: str = ""
    last_words: str = ""
    """The last line of its log, where its process is gone."""
    died: "Died | None" = None
    """The process before this one, where that ended by itself a short while ago."""
    stopped: Mapping[int, str] = field(default_factory=dict)
    """Stopped processes that it had started, with what they are."""
    asked_seconds: float = 0.0
    """How long it was given to answer."""
    demand: Demand = field(default_factory=Demand)
    """What it wanted of the processors while it was asked."""

    @property
    def is_busy(self) -> bool:
        """Whether it lives, has work, and has not come to answer."""
        silent = self.reply is Reply.SILENT and self.condition is Condition.RUNNING
        return silent and self.demand.is_busy(self.asked_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Died:
    """A process in whose place another was started."""

    pid: int
    last_words: str
    seconds_ago: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Something that a member waits for."""

    owner: str
    waits_for: str
    reason: str
    waited_seconds: float
    deadline_seconds: float = 0.0
    """Until it gives up; 0 when it never does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A service as it described itself `silent_seconds` ago."""

    role: str
    activity: str
    address: str = ""
    experiment_id: str = ""
    stage: str = ""
    silent_seconds: float = 0.0
    waits: tuple[Wait, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """One experiment."""

    id: str
    label: str
    state: str
    reason: str = ""
    stage: str = ""
    """The one that runs."""
    roles: tuple[str, ...] = ()
    """Whose part of that stage is not done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageWork:
    """The open work of one stage, and how it gets on."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A run at one moment; what could not be asked for is None."""

    parts: tuple[Part, ...]
    """Each after those that it needs."""
    members: tuple[Member, ...] | None = None
    experiments: tuple[Experiment, ...] | None = None
    """Newest first."""
    work: tuple[StageWork, ...] | None = None
    complaint: str = ""
    """Why something could not be asked for."""
    full_disk: str = ""
    """The run's directory, where its disk has no room left."""

    def part(self, name: str) -> Part | None:
        """The part of that name."""
        return next((part for part in self.parts if part.name == name), None)

    @property
    def running(self) -> Experiment | None:
        """The experiment that is worked on: the oldest that runs."""
        running = [one for one in self.experiments or () if one.state == "running"]
        return running[-1] if running else None

    @property
    def stage_work(self) -> StageWork | None:
        """The open work of the stage that runs."""
        running = self.running
        if running is None:
            return None
        mine = [one for one in self.work or () if one.experiment_id == running.id]
        return next((one for one in mine if one.stage == running.stage), None)
