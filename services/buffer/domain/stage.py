"""A stage and the states of the rows that belong to it."""

from bisect import bisect_left
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache

from trinity.config.plan.stage_plan import StagePlan
from trinity.types import StageKey


class StageState(StrEnum):
    """States of a stage; one that failed or was cancelled may be reopened."""

    OPEN = "open"
    FINISHED = "finished"
    CANCELLED = "cancelled"
    FAILED = "failed"


class AssignmentKind(StrEnum):
    """The purpose of an assignment: training or evaluation."""

    TRAIN = "train"
    EVAL = "eval"


class AssignmentState(StrEnum):
    """States of an assignment; pending and leased ones are open."""

    PENDING = "pending"
    LEASED = "leased"
    CLOSED = "closed"
    GIVEN_UP = "given_up"
    CANCELLED = "cancelled"
    CUT = "cut"
    """Left behind because its explore step had enough."""


OPEN_ASSIGNMENT = (AssignmentState.PENDING, AssignmentState.LEASED)


class RunState(StrEnum):
    """States of one of an assignment's runs."""

    OPEN = "open"
    WON = "won"
    GIVEN_UP = "given_up"


class AttemptState(StrEnum):
    """The result of one attempt at a run."""

    WON = "won"
    SUPERSEDED = "superseded"
    FAILED = "failed"
    LATE = "late"


class ExperienceState(StrEnum):
    """States of an experience; only ready ones can be batched."""

    AWAITING = "awaiting"
    """Its reward arrives later, and its group waits for it."""
    RAW = "raw"
    DERIVED = "derived"
    READY = "ready"
    BATCHED = "batched"
    FILTERED = "filtered"
    EVAL = "eval"
    SUPERSEDED = "superseded"
    LATE = "late"
    EXCLUDED = "excluded"
    """Left out by a person."""
    DELETED = "deleted"
    """Left out by a person, with its content deleted."""


UNTRAINED = (ExperienceState.AWAITING, ExperienceState.RAW, ExperienceState.READY)
"""States of samples that may still be batched."""


class ScopeState(StrEnum):
    """States of a scope, the unit of work of the pipeline."""

    AWAITING = "awaiting"
    """Waits for the rewards of its samples; the pipeline does not claim it."""
    OPEN = "open"
    CLAIMED = "claimed"
    DONE = "done"
    DEAD = "dead"


OPEN_SCOPE = (ScopeState.OPEN, ScopeState.CLAIMED)
UNFINISHED_SCOPE = (*OPEN_SCOPE, ScopeState.AWAITING)


class TasksetKind(StrEnum):
    """The use that a stage makes of a taskset."""

    TRAIN = "train"
    EVAL = "eval"
    DATA = "data"
    EXPERT = "expert"


class EvaluationState(StrEnum):
    """States of an evaluation."""

    OPEN = "open"
    DONE = "done"
    CANCELLED = "cancelled"


class CommitStatus(StrEnum):
    """The commit status that a producer receives for a result."""

    COMMITTED = "committed"
    SUPERSEDED = "superseded"
    LATE = "late"
    REJECTED = "rejected"


MAX_CACHED_PLANS = 1024
"""More than the number of stages usually open at once; a plan takes about 80 KiB. Loops over all
stages read each plan in turn: a smaller cache would evict every plan before its next use."""


@lru_cache(maxsize=MAX_CACHED_PLANS)
def parse_plan(text: str) -> StagePlan:
    """Parses a plan, with a cache: plans are read on every request and rarely change."""
    return StagePlan.model_validate_json(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One row of the stage table."""

    key: StageKey
    plan: StagePlan
    seed: int
    state: StageState
    reason: str
    num_rows: int
    """Tasks of its tasksets together, and stored samples where it trains on them."""
    total_train_steps: int
    total_explore_steps: int
    explore_step: int
    num_drawn: int
    """Tasks drawn so far."""
    num_stale: int
    """Rows left out as too old since the newest batch."""
    line: int
    """Numbers the histories of batches: going back to a checkpoint begins another one."""
    incarnation: int
    published: int | None
    """The version that the newest incarnation has published."""
    recorded_step: int
    """The newest step with a recorded batch."""
    trained_step: int
    finished_step: int | None
    segment_id: int
    step_version: int = 0
    """The version that the newest explore step uses."""
    wants_version: bool = False
    """True while explorers wait for newer weights."""
    num_unfilled: int = 0
    """Planned train steps that do not exist, because the rows of explore steps filled fewer."""
    session_key: bytes | None = field(default=None, repr=False)
    """Key of the HMAC that makes addresses of sessions; None if the stage is older than those."""

    @property
    def samples_key(self) -> StageKey:
        """The stage that holds the samples of its batches: itself unless it trains stored ones."""
        stored = self.plan.stored_rollouts or self.plan.stored_batches
        if stored is None:
            return self.key
        return StageKey(
            tenant=self.key.tenant,
            experiment_id=stored.experiment_id or self.key.experiment_id,
            stage=stored.stage,
        )

    @property
    def is_open(self) -> bool:
        """True while work can still happen in it."""
        return self.state is StageState.OPEN

    @property
    def takes_clients(self) -> bool:
        """True if it trains calls that clients commit."""
        return any(taskset.is_of_clients for taskset in self.plan.tasksets)

    @property
    def is_ordered(self) -> bool:
        """True if batches follow the order of the rollouts, not that of their arrival."""
        return not self.plan.is_asynchronous

    @property
    def max_attempts(self) -> int:
        """Number of failures after which a run is given up."""
        return self.plan.config.explorer.max_retry_times + 1

    @property
    def attempts_per_lease(self) -> int:
        """Attempt numbers that a lease reserves for each run: one extra for a rejected result."""
        return self.max_attempts + 1

    @property
    def repeat_times(self) -> int:
        """Number of runs of one task."""
        return self.plan.algorithm.repeat_times

    @property
    def failed_runs_count_zero(self) -> bool:
        """True if failed runs of evaluations have 0 in every score."""
        return self.plan.config.explorer.eval_failed_runs == "zero"

    def version_after(self, train_step: int) -> int:
        """Returns the newest version that exists when `train_step` is trained."""
        interval = self.plan.config.synchronizer.sync_interval
        return train_step // interval * interval

    def required_version(self, explore_step: int) -> int:
        """Returns the version of the weights of an explore step, by the train steps there are."""
        return self.plan.required_version(explore_step, self.num_unfilled)

    def is_evaluated(self, version: int) -> bool:
        """Returns whether the plan evaluates these weights: at startup or after an interval.

        The last weights are evaluated when training has finished, not here. With a dynamic sync
        style, `open_interval_evaluations` decides instead.
        """
        if self.plan.benched is not None:
            return version not in self.plan.benched.known_versions
        if version == 0:
            return self.plan.mode == "bench" or self.plan.config.explorer.eval_on_startup
        if self.plan.has_dynamic_sync:
            return False
        interval = self.plan.eval_interval
        last = self.total_explore_steps // interval

        def version_after_interval(k: int) -> int:
            return self.required_version(k * interval + 1)

        k = bisect_left(range(1, last + 1), version, key=version_after_interval) + 1
        return k <= last and version_after_interval(k) == version


def first_unbatched_step(stage: Stage) -> int:
    """Returns the explore step that the next batch begins with, if every rollout gives its row."""
    if not stage.plan.rows_per_explore_step:
        return 1
    rows_batched = (stage.recorded_step + stage.num_unfilled) * stage.plan.num_fresh_rows
    return rows_batched // stage.plan.rows_per_explore_step + 1


def refilled_explore_step(stage: Stage, train_step: int) -> int:
    """Returns the explore step that gets more tasks where a train step lacks rows."""
    return train_step if stage.plan.trains_explore_steps else stage.explore_step


def due_explore_step(stage: Stage, train_step: int) -> int:
    """Returns the explore step that gives the last of the rows due for a train step."""
    rows = (train_step + stage.num_unfilled) * stage.plan.num_fresh_rows
    return min(-(-rows // stage.plan.rows_per_explore_step), stage.total_explore_steps)


def planned_rows(stage: Stage, train_step: int) -> int:
    """Returns the rollouts due for a train step if each gives its row; the last may be short."""
    total = stage.total_explore_steps * stage.plan.rows_per_explore_step
    left = total - (train_step - 1 + stage.num_unfilled) * stage.plan.num_fresh_rows
    return max(0, min(stage.plan.num_fresh_rows, left))
