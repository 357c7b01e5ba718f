"""Assignments leased from the buffer, and its answers to requests for them."""

import json
from dataclasses import dataclass
from enum import StrEnum

from services.explorer.weights_types import Requirement
from trinity.types import JsonObject


class Kind(StrEnum):
    """The purpose of a rollout."""

    TRAIN = "train"
    EVAL = "eval"


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """One draw of one task, leased to this explorer."""

    id: str
    kind: Kind
    explore_step: int
    """The version to measure, if it is an evaluation."""
    position: int
    taskset: str
    task_index: int
    task_json: str
    runs: tuple[int, ...]
    first_attempt: int
    lease_token: str
    required: Requirement
    traceparent: str = ""

    def new_task(self) -> JsonObject:
        """Returns a fresh copy of the task's row: a workflow's changes affect no other run."""
        row: JsonObject = json.loads(self.task_json)
        return row


@dataclass(frozen=True, slots=True)
class Granted:
    """The buffer granted work."""

    assignments: tuple[Assignment, ...]


@dataclass(frozen=True, slots=True)
class Waiting:
    """There is no work now."""

    reason: str


@dataclass(frozen=True, slots=True)
class Drained:
    """The stage will have no more work."""


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The stage was ended from outside."""

    reason: str


@dataclass(frozen=True, slots=True)
class Stopped:
    """This process takes no more work."""


LeaseAnswer = Granted | Waiting | Drained | Cancelled
Ending = Drained | Cancelled | Stopped
"""The reason for having nothing more to do in a stage."""
