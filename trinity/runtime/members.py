"""The phase that a process reports of itself, and the kinds of its waits."""

from enum import StrEnum


class MemberPhase(StrEnum):
    """The phase of a process."""

    PREPARING = "preparing"
    """It gets ready: a model is loaded, processes are started."""
    WORKING = "working"
    SERVING = "serving"
    """It serves a model to others; its activity says where."""
    GONE = "gone"


class WaitKind(StrEnum):
    """The event that ends a wait, as far as a diagnosis depends on it."""

    STATE = "state"
    """The other part has to get somewhere; the wait's text says where."""
    NO_ANSWER = "no_answer"
    """The other part has to give any answer at all."""
    COMMIT = "commit"
    """Results have to be committed."""
    REWARDS = "rewards"
    """People or programs outside of the run have to give rewards."""
    TASKS = "tasks"
    """The same for tasks of a queue."""
