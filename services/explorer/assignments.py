"""Work as the explorer holds it."""

import json
from dataclasses import dataclass
from enum import StrEnum

from services.explorer.weights import Requirement
from trinity.types import JsonObject


class Kind(StrEnum):
    """What a rollout is for."""

    TRAIN = "train"
    EVAL = "eval"


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """One draw of one task, leased to this explorer."""

    id: str
    kind: Kind
    explore_step: int
    """Of an evaluation, the version it measures."""
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
        """The task's row, for one run: what its workflow changes there reaches no other."""
        row: JsonObject = json.loads(self.task_json)
        return row


@dataclass(frozen=True, slots=True)
class Granted:
    """Work."""

    assignments: tuple[Assignment, ...]


@dataclass(frozen=True, slots=True)
class Waiting:
    """No work now."""

    reason: str


@dataclass(frozen=True, slots=True)
class Drained:
    """No work ever again in this stage."""


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The stage was ended from outside."""

    reason: str


@dataclass(frozen=True, slots=True)
class Stopped:
    """This process takes no more work."""


LeaseAnswer = Granted | Waiting | Drained | Cancelled
Ending = Drained | Cancelled | Stopped
"""Why there is nothing more to do in a stage."""
