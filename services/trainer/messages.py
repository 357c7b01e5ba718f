"""What the service and its ranks tell each other, as JSON lines over pipes."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class StageOrder(_Message):
    """Service to rank: train this stage."""

    kind: Literal["stage"] = "stage"
    tenant: str
    experiment_id: str
    stage: str
    seed: int
    """Seed of the experiment."""
    plan_json: str
    """The StagePlan."""
    job_dir: str
    start_path: str
    """Directory or hub name of the starting weights."""
    start_manifest_sha256: str
    """Hex hash of its manifest; empty where the start is the user's model."""
    trainer_id: str
    buffer_address: str
    synchronizer_address: str
    transfer_host: str = "127.0.0.1"
    """Address that weights are given from memory at, where the plan has it so."""


class StopOrder(_Message):
    """Service to rank: finish or abandon the step and exit."""

    kind: Literal["stop"] = "stop"


Order = Annotated[StageOrder | StopOrder, Field(discriminator="kind")]


class Ready(_Message):
    """Rank to service: imported, joined, waiting for orders."""

    kind: Literal["ready"] = "ready"


class Activity(_Message):
    """Rank to service: what it does now."""

    kind: Literal["activity"] = "activity"
    activity: str
    incarnation: int = 0
    step: int = 0
    """Newest step trained and reported."""
    version: int = 0
    """Newest version published."""


class Alive(_Message):
    """Rank to service: it gets on with what it said it does."""

    kind: Literal["alive"] = "alive"


class Waiting(_Message):
    """Rank to service: one of its waits goes on, or is over once `waits_for` is empty."""

    kind: Literal["waiting"] = "waiting"
    name: str
    """Tells the rank's waits from one another."""
    waits_for: str = ""
    reason: str = ""
    deadline_seconds: float = 0.0
    """Seconds from its beginning until it gives up; 0 when it never does."""


class StageEnded(_Message):
    """Rank to service: it has no more to do in the stage."""

    kind: Literal["ended"] = "ended"
    outcome: Literal["finished", "cancelled", "superseded"]
    """Cancelled: the buffer ended the stage. Superseded: a newer incarnation trains it."""
    reason: str = ""


class StageFailed(_Message):
    """Rank to service, before it exits: what went wrong."""

    kind: Literal["failed"] = "failed"
    reason: str
    can_retry: bool
    """False where another try would end the same way."""


Event = Annotated[
    Ready | Activity | Alive | Waiting | StageEnded | StageFailed, Field(discriminator="kind")
]

ORDERS: TypeAdapter[Order] = TypeAdapter(Order)
EVENTS: TypeAdapter[Event] = TypeAdapter(Event)

EVENTS_VARIABLE = "TRINITY_RANK_EVENTS_FD"
"""Number of the inherited pipe that takes a rank's events."""
LISTENER_VARIABLE = "TRINITY_RANK_STORE_FD"
"""Number of the inherited socket on which the first rank lets the others find it."""
LOG_LEVEL_VARIABLE = "TRINITY_RANK_LOG_LEVEL"
LOG_FORMAT_VARIABLE = "TRINITY_RANK_LOG_FORMAT"


def encode(message: _Message) -> bytes:
    """One line."""
    return message.model_dump_json().encode() + b"\n"
