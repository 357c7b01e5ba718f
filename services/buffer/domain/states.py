"""State enums of the rows in the database."""

from enum import StrEnum


class StageState(StrEnum):
    """States of a stage; one that failed or was cancelled may be reopened."""

    OPEN = "open"
    FINISHED = "finished"
    CANCELLED = "cancelled"
    FAILED = "failed"


class AssignmentKind(StrEnum):
    """The purpose of a rollout."""

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


class Fate(StrEnum):
    """The commit status that a producer receives for a result."""

    COMMITTED = "committed"
    SUPERSEDED = "superseded"
    LATE = "late"
    REJECTED = "rejected"
