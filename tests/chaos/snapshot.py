"""An experiment as it is on record: rows of both databases, files, and what the producers saw."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from tests.support.replay_model import Rules


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRecord:
    """The stage, with what of its plan matters here."""

    state: str
    reason: str
    total_train_steps: int
    trained_step: int
    train_batch_size: int
    num_expert_rows: int = 0
    """Rows of data among those of each batch."""
    is_ordered: bool
    """Without offset: every run is made with the version that it names, in a fixed order."""
    replay: Rules | None = None
    """Where samples may be trained more than once."""
    eval_tasks: Mapping[str, int] = field(default_factory=dict)
    """Number of tasks to measure by, by their taskset."""
    due_versions: tuple[int, ...] = ()
    """Versions that are to be measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """One draw of one task."""

    id: str
    explore_step: int
    position: int
    state: str
    required_version: int
    repeat_times: int
    kind: str = "train"
    taskset: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One of its runs."""

    assignment_id: str
    run: int
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A result that is stored."""

    assignment_id: str
    run: int
    attempt: int
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A row of the table of experiences."""

    id: str
    assignment_id: str
    explore_step: int
    position: int
    run: int
    attempt: int
    revision: int
    parent_id: str | None
    payload_id: str
    state: str
    reason: str
    is_replaced: bool = False
    """Left out, with a copy of another sample in its place."""
    versions: tuple[int | None, int | None]
    content_hash: str
    reward: float | None = None
    has_content: bool = True
    """Whether what it holds is there."""
    is_let_go: bool = False
    """Whether the buffer says that it needs its content no more."""


BatchRow = tuple[str, float]
"""What is trained on, and its advantage: the payload of a sample, or a row of data as `data 5`."""
DATA = "data "


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A batch of the line that counts, its rows in order."""

    step: int
    experience_ids: tuple[str, ...]
    """Of those rows that are samples."""
    rows: tuple[BatchRow, ...]

    @property
    def payloads(self) -> list[str]:
        """Of those rows that are samples."""
        return [one for one, _ in self.rows if not one.startswith(DATA)]

    @property
    def data(self) -> list[str]:
        """Those rows that are data."""
        return [one for one, _ in self.rows if one.startswith(DATA)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """Something that a life of the trainer had recorded."""

    what: str
    number: int
    incarnation: int
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """Weights as the synchronizer announced them, or as the buffer recorded them."""

    version: int
    incarnation: int
    weights_root: str
    manifest_sha256: str = ""
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A checkpoint to resume from."""

    step: int
    incarnation: int
    is_intact: bool
    """Whether its files were what its manifest says when this was read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """What was measured of a version."""

    version: int
    taskset: str
    state: str
    num_tasks: int
    num_failed: int
    reward: float
    """The mean over tasks; not a number where there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What an explorer was told about a result."""

    assignment_id: str
    run: int
    attempt: int
    fate: str
    experience_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenBatch:
    """A batch as a life of the trainer got it."""

    step: int
    incarnation: int
    rows: tuple[BatchRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Weights that an engine was given."""

    path: str
    manifest_sha256: str
    is_intact: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewarded:
    """What somebody was told who gave rewards; all of them were set then, if they are new."""

    rewards: dict[str, float]
    are_new: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Taskset:
    """A taskset that a client brought: what it was told, and what is stored."""

    name: str
    told_rows: int
    """-1 when it was told last that it is deleted, or not there any more."""
    right_rows: int
    """Rows that are what was sent, in order, from the first on."""
    stored_rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """What was done to an experiment while it went on, as those were told who did it."""

    rewarded: tuple[Rewarded, ...] = ()
    excluded: tuple[str, ...] = ()
    included: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()
    overdue: tuple[str, ...] = ()
    """Samples whose reward never came, and that had waited long enough."""
    num_told_overdue: int = 0
    """Of how many the progress says that they were left out."""
    tasksets: tuple[Taskset, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All of it, for one stage of one experiment."""

    stage: StageRecord
    assignments: tuple[Assignment, ...]
    runs: tuple[Run, ...]
    attempts: tuple[Attempt, ...]
    samples: tuple[Sample, ...]
    nobodys: tuple[str, ...] = ()
    """Contents that are no sample's."""
    batches: tuple[Batch, ...]
    lives: tuple[Commit, ...]
    """When each incarnation began; `what` is "life"."""
    commits: tuple[Commit, ...]
    recorded: tuple[Version, ...]
    published: tuple[Version, ...]
    checkpoints: tuple[Checkpoint, ...]
    told: tuple[Told, ...]
    seen: tuple[SeenBatch, ...]
    loads: tuple[Load, ...]
    visit: Visit = Visit()
    evaluations: tuple[Evaluation, ...] = ()
    weights: str
    """What the stage ended with."""
    expected_weights: str
    """What the same stage ends with when nothing is killed."""
