"""The states that rows go through, and why they leave."""

from enum import StrEnum


class StageState(StrEnum):
    """Life of a stage; one that failed or was cancelled may be opened again."""

    OPEN = "open"
    FINISHED = "finished"
    CANCELLED = "cancelled"
    FAILED = "failed"


class AssignmentKind(StrEnum):
    """What a rollout is for."""

    TRAIN = "train"
    EVAL = "eval"


class AssignmentState(StrEnum):
    """Life of an assignment; pending and leased ones are open."""

    PENDING = "pending"
    LEASED = "leased"
    CLOSED = "closed"
    GIVEN_UP = "given_up"
    CANCELLED = "cancelled"
    CUT = "cut"
    """Left behind, as its explore step had enough."""


OPEN_ASSIGNMENT = (AssignmentState.PENDING, AssignmentState.LEASED)


class RunState(StrEnum):
    """Life of one of an assignment's runs."""

    OPEN = "open"
    WON = "won"
    GIVEN_UP = "given_up"


class AttemptState(StrEnum):
    """What became of one attempt at a run."""

    WON = "won"
    SUPERSEDED = "superseded"
    FAILED = "failed"
    LATE = "late"


class ExperienceState(StrEnum):
    """Life of an experience; only ready ones can be batched."""

    AWAITING = "awaiting"
    """Its reward comes later, and its group waits for it."""
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
    """The same, and its content is gone."""


class ScopeState(StrEnum):
    """Life of what the pipeline works on at once."""

    AWAITING = "awaiting"
    """For the rewards of its samples: not to be worked on."""
    OPEN = "open"
    CLAIMED = "claimed"
    DONE = "done"
    DEAD = "dead"


OPEN_SCOPE = (ScopeState.OPEN, ScopeState.CLAIMED)
UNFINISHED_SCOPE = (*OPEN_SCOPE, ScopeState.AWAITING)


class TasksetKind(StrEnum):
    """What a stage takes from a taskset."""

    TRAIN = "train"
    EVAL = "eval"
    DATA = "data"
    EXPERT = "expert"


class EvaluationState(StrEnum):
    """Life of an evaluation."""

    OPEN = "open"
    DONE = "done"
    CANCELLED = "cancelled"


class Fate(StrEnum):
    """What a producer is told about a result."""

    COMMITTED = "committed"
    SUPERSEDED = "superseded"
    LATE = "late"
    REJECTED = "rejected"
