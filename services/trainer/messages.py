"""Messages between the service and its ranks, as JSON lines over pipes."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from trinity.runtime.members import MemberPhase, WaitKind
from trinity.runtime.telemetry.tracing import Value

EVENTS_VARIABLE = "TRINITY_RANK_EVENTS_FD"
"""Descriptor number of the inherited pipe that takes a rank's events."""
LISTENER_VARIABLE = "TRINITY_RANK_STORE_FD"
"""Descriptor number of the inherited socket on which the first rank serves the store."""
LOG_LEVEL_VARIABLE = "TRINITY_RANK_LOG_LEVEL"
LOG_FORMAT_VARIABLE = "TRINITY_RANK_LOG_FORMAT"
METRICS_VARIABLE = "TRINITY_RANK_METRICS"
"""Set where the service keeps metrics: the first rank sends it the values that it measures."""


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


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
    """Address at which weights are sent from memory, where the plan asks for it."""


class StopOrder(_Message):
    """Service to rank: finish or abandon the step and exit."""

    kind: Literal["stop"] = "stop"


class SaveOrder(_Message):
    """Service to rank: end the step in hand, save a checkpoint and leave the stage."""

    kind: Literal["save"] = "save"


Order = Annotated[StageOrder | StopOrder | SaveOrder, Field(discriminator="kind")]


class RankReady(_Message):
    """Rank to service: imports done, process group joined, waiting for orders."""

    kind: Literal["ready"] = "ready"


class RankActivity(_Message):
    """Rank to service: its current activity."""

    kind: Literal["activity"] = "activity"
    activity: str
    incarnation: int = 0
    step: int = 0
    """The newest step trained and reported."""
    version: int = 0
    """The newest version published."""
    phase: MemberPhase = MemberPhase.WORKING


class RankAlive(_Message):
    """Rank to service: a sign of life within its current activity."""

    kind: Literal["alive"] = "alive"


class RankWaiting(_Message):
    """Rank to service: one of its waits continues, or is over if `waits_for` is empty."""

    kind: Literal["waiting"] = "waiting"
    name: str
    """Identifies the wait among the rank's waits."""
    waits_for: str = ""
    reason: str = ""
    deadline_seconds: float = 0.0
    """Seconds from its beginning until it gives up; 0 if it never does."""
    wait_kind: WaitKind = WaitKind.STATE


class RankMeasured(_Message):
    """First rank to service: a value of one of its instruments; it is no sign of life."""

    kind: Literal["measured"] = "measured"
    name: str
    value: float
    attributes: dict[str, Value]


class RankStageEnded(_Message):
    """Rank to service: its work in the stage is done."""

    kind: Literal["ended"] = "ended"
    outcome: Literal["finished", "stopped", "cancelled", "superseded", "again"]
    """Stopped: as ordered, and saved. Cancelled: the buffer ended the stage. Superseded: a newer
    incarnation trains it. Again: weights that are evaluated are damaged, and the checkpoint has
    them."""
    reason: str = ""


class RankStageFailed(_Message):
    """Rank to service, before it exits: the error."""

    kind: Literal["failed"] = "failed"
    reason: str
    can_retry: bool
    """False if another try would end the same way."""


Event = Annotated[
    RankReady
    | RankActivity
    | RankAlive
    | RankWaiting
    | RankMeasured
    | RankStageEnded
    | RankStageFailed,
    Field(discriminator="kind"),
]

ORDERS: TypeAdapter[Order] = TypeAdapter(Order)
EVENTS: TypeAdapter[Event] = TypeAdapter(Event)


def encode(message: _Message) -> bytes:
    """Returns the message as one line."""
    return message.model_dump_json().encode() + b"\n"
