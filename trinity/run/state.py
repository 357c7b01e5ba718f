"""One state of a run: the combined answers of the synchronizer and the buffer.

    state = await ask_state(to_synchronizer, to_buffer)

`trinity status`, `trinity why`, their JSON and pages show it. Fields are only ever added.
"""

import asyncio
import re
from typing import Annotated, Any, Self

import grpc
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from pydantic import AliasPath, BaseModel, BeforeValidator, ConfigDict, Field

from trinity.api.v1 import buffer_pb2, synchronizer_pb2
from trinity.api.v1.buffer_pb2_grpc import BufferServiceStub
from trinity.api.v1.synchronizer_pb2_grpc import SynchronizerServiceStub
from trinity.run.output import format_duration
from trinity.run.progress.view import change_text
from trinity.runtime.members import MemberPhase, WaitKind
from trinity.runtime.rpc.limits import CALL_SECONDS

NEWER = " of a newer version"
_PREFIX = re.compile(r"(EXPERIMENT_STATE|STAGE_STATE|ROLE|MEMBER_PHASE|WAIT_KIND)_")


def _short_name(value: object) -> str:
    """Converts `EXPERIMENT_STATE_RUNNING` to `running`; a number is a value not known here."""
    return f"{value}{NEWER}" if isinstance(value, int) else _PREFIX.sub("", str(value)).lower()


def _role_or_none(value: object) -> object:
    return None if value in (None, "ROLE_UNSPECIFIED") else _short_name(value)


Name = Annotated[str, BeforeValidator(_short_name)]


class Report(BaseModel):
    """Base of what is shown, and printed as JSON."""

    model_config = ConfigDict(
        frozen=True, use_attribute_docstrings=True, validate_by_name=True, validate_by_alias=True
    )


class WaitReport(Report):
    """One wait of a part for another one, and why."""

    owner: str
    waits_for: str
    reason: str
    waited_seconds: float
    deadline_seconds: Annotated[float | None, BeforeValidator(lambda left: left or None)] = None
    """None if it never gives up."""
    kind: Name = WaitKind.STATE
    """What has to happen before it ends: `state`, `no_answer`, `commit`, `rewards` or `tasks`."""
    experiment_id: str = ""
    """The only experiment that is held up; empty if it may be any."""


class EndedWaitReport(Report):
    """One wait of a part that has ended."""

    role: Name
    """`explorer`, `trainer` or `buffer`: the process that waited."""
    owner: str
    waits_for: str
    reason: str
    waited_seconds: float
    ended_seconds_ago: float
    stage: str
    experiment_id: str
    """Empty if its process worked on none."""
    member_id: str = Field(default="", exclude=True)
    number: int = Field(default=0, exclude=True)
    """Counts the ended waits of a member."""
    address: str = Field(default="", exclude=True)


class MemberReport(Report):
    """One process, as it described itself `silent_seconds` ago."""

    id: str = ""
    role: Name
    address: str = ""
    experiment_id: str = ""
    stage: str = ""
    activity: str
    phase: Name = MemberPhase.WORKING
    """`preparing`, `working`, `serving` or `gone`."""
    version: Annotated[
        int | None, BeforeValidator(lambda told: None if int(told or 0) < 0 else told)
    ] = None
    """The version of the weights that it has."""
    silent_seconds: float = 0.0
    waits: tuple[WaitReport, ...] = Field(default=(), exclude=True)


class StageReport(Report):
    """One stage of an experiment."""

    name: str
    state: Name
    """`pending`, `running`, `finished`, `failed`, or `stopped`; of a run that was stopped it is
    that of all its stages."""
    roles: tuple[Name, ...] = ()
    """Roles that it needs."""
    finished_roles: tuple[Name, ...] = ()
    newest_checkpoint: int | None = None
    """Train step of its newest checkpoint, of a run that has stopped."""
    total_train_steps: int | None = None
    final_version: int | None = Field(
        default=None, validation_alias=AliasPath("final_version", "version"), exclude=True
    )
    """The version of the weights that it ended with."""


class DeviceWishReport(Report):
    """A role that wants the device."""

    role: Name
    reason: str
    waited_seconds: float


class DeviceTurnReport(Report):
    """The turn on a GPU that engine and trainer share."""

    holder: Annotated[str | None, BeforeValidator(_role_or_none)] = None
    """`explorer` or `trainer`; None while neither has it."""
    process: str = ""
    reason: str = ""
    held_seconds: float
    """Since it was taken, or given back."""
    wishes: tuple[DeviceWishReport, ...] = ()

    @property
    def text(self) -> str:
        """Describes whose turn it is."""
        since = format_duration(self.held_seconds)
        text = f"the shared GPU is free since {since}"
        if self.holder:
            text = f"the shared GPU is the {self.holder}'s turn since {since}, {self.reason}"
            text += f" ({self.process})" if self.process else ""
        for wish in self.wishes:
            waited = format_duration(wish.waited_seconds)
            text += f"; the {wish.role} has wanted it for {waited}, {wish.reason}"
        return text


class ExperimentReport(Report):
    """One experiment, with its stages in order."""

    id: str = ""
    tenant: str = Field(default="", exclude=True)
    label: str
    state: Name
    """`running`, `finished`, `failed`, `cancelled`, or `stopped`: `trinity run` goes on with it."""
    reason: str = ""
    stages: tuple[StageReport, ...] = ()
    turn: DeviceTurnReport | None = None
    """None where engine and trainer share no GPU."""

    @property
    def running_stage(self) -> StageReport | None:
        """The stage that is worked on."""
        return next((stage for stage in self.stages if stage.state == "running"), None)

    @property
    def open_roles(self) -> tuple[str, ...]:
        """Roles that have not finished the running stage."""
        stage = self.running_stage
        found = stage.roles if stage is not None else ()
        return tuple(role for role in found if stage and role not in stage.finished_roles)


class ReplayReport(Report):
    """The samples that a stage trained more than once."""

    num_trained: int
    num_replayed: int
    num_waiting: int
    num_dropped: int
    max_uses: int


class LeftOutReport(Report):
    """Tasks that a task pipeline left out for one reason."""

    num_rows: int
    reason: str


class TaskPipelineReport(Report):
    """The tasks that a task pipeline left of a taskset."""

    taskset: str
    num_rows: int
    num_read: int = Field(validation_alias=AliasPath("counts", "num_read"))
    left_out: tuple[LeftOutReport, ...] = Field(
        default=(), validation_alias=AliasPath("counts", "left_out")
    )


class WorkReport(Report):
    """The open work of a stage, and its progress."""

    tenant: str = Field(default="", validation_alias=AliasPath("key", "tenant"))
    experiment_id: str = Field(default="", validation_alias=AliasPath("key", "experiment_id"))
    stage: str = Field(default="", validation_alias=AliasPath("key", "stage"))
    explore_step: int = 0
    trained_step: int = 0
    total_train_steps: int = 0
    """0 while it is not known."""
    num_pending: int = 0
    num_leased: int = 0
    num_ready: int = 0
    num_stream_pending: int = 0
    num_dead_letters: int = 0
    """Results that were refused."""
    dead_letter_reason: str = ""
    """The reason for the newest of them."""
    step_age_seconds: float = -1.0
    """Since a train step was reported; -1 before the first."""
    step_seconds: float = 0.0
    """The usual time between two train steps; 0 while there are too few."""
    idle_share: float = -1.0
    """The share of the newest steps' time in which the trainer waited; -1 while it is unknown."""
    num_recent_runs: int = 0
    num_recent_lost: int = 0
    """Those of them that gave nothing to train on."""
    recent_loss: str = ""
    """Why most of those were lost."""
    refill_round: int = 0
    num_refill_tasks: int = 0
    replay: ReplayReport | None = None
    """None where no sample is trained twice."""
    task_pipelines: tuple[TaskPipelineReport, ...] = ()
    changes: tuple[str, ...] = ()
    """Settings that were changed after the stage was opened."""


class RunReport(Report):
    """A run at one moment; what could not be asked is None."""

    experiments: tuple[ExperimentReport, ...] | None = None
    """Newest first."""
    members: tuple[MemberReport, ...] | None = None
    work: tuple[WorkReport, ...] | None = None
    unanswered: str = ""
    """The reason why something could not be asked."""
    ended_waits: tuple[EndedWaitReport, ...] = ()
    """The newest first; empty where the synchronizer stores none."""
    left_out: dict[str, int] = Field(default_factory=dict)
    """How many of each did not fit into the answers."""

    def of_experiment(self, experiment_id: str) -> Self:
        """Leaves out other experiments, and what works on them."""
        mine = [found for found in self.experiments or () if found.id == experiment_id]
        around = ("", experiment_id)
        members = [found for found in self.members or () if found.experiment_id in around]
        changes: dict[str, object] = {"experiments": tuple(mine), "members": tuple(members)}
        return self if self.members is None else self.model_copy(update=changes)

    @property
    def waits(self) -> tuple[WaitReport, ...]:
        """All waits."""
        return tuple(wait for member in self.members or () for wait in member.waits)

    @property
    def running(self) -> ExperimentReport | None:
        """The experiment that is worked on: the oldest running one."""
        running = [found for found in self.experiments or () if found.state == "running"]
        return running[-1] if running else None

    @property
    def own_ended_waits(self) -> tuple[EndedWaitReport, ...]:
        """The waits that ended in the experiment that is worked on, and those of idle processes."""
        mine = ("", self.running.id) if self.running is not None else None
        return tuple(
            wait for wait in self.ended_waits if mine is None or wait.experiment_id in mine
        )

    @property
    def running_work(self) -> WorkReport | None:
        """The open work of the running stage."""
        running = self.running
        stage = running.running_stage if running is not None else None
        if running is None or stage is None:
            return None
        mine = (work for work in self.work or () if work.experiment_id == running.id)
        return next((work for work in mine if work.stage == stage.name), None)


def state_of(
    status: synchronizer_pb2.GetStatusResponse | str = "",
    work: buffer_pb2.GetBufferStatusResponse | str = "",
) -> RunReport:
    """Returns the state; a missing answer is given as a text with the reason."""
    values: dict[str, object] = {}
    left_out: dict[str, object] = {}
    for answer in (work, status):
        values |= {"unanswered": answer} if isinstance(answer, str) else {}
    if not isinstance(status, str):
        known = _values(status)
        values |= known | {"ended_waits": known["closed_waits"]}
        left_out |= {name: known[f"num_{name}_left_out"] for name in ("experiments", "members")}
    if not isinstance(work, str):
        changes = ([change_text(change) for change in stage.changes] for stage in work.stages)
        stages = zip(map(_values, work.stages), changes, strict=True)
        values["work"] = [stage | {"changes": changed} for stage, changed in stages]
        left_out["stages"] = work.num_stages_left_out
    return RunReport.model_validate(values | {"left_out": left_out})


def _values(message: Message) -> dict[str, object]:
    """Returns the fields of a message by their names; constants by theirs."""
    values: dict[str, object] = MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return values


async def ask_state(
    to_synchronizer: grpc.aio.Channel,
    to_buffer: grpc.aio.Channel,
    *,
    experiment_id: str = "",
    tenant: str = "",
    max_ended_waits: int = 0,
    seconds: float = CALL_SECONDS,
) -> RunReport:
    """Asks both services at once about one experiment, or all; takes some seconds at most."""
    synchronizer, buffer = SynchronizerServiceStub(to_synchronizer), BufferServiceStub(to_buffer)
    answers = await asyncio.gather(
        ask_status(synchronizer, experiment_id, max_ended_waits, seconds),
        ask_work(buffer, tenant, experiment_id, seconds),
        return_exceptions=True,
    )
    return state_of(*map(_answer_or_reason, answers))


async def ask_status(
    synchronizer: SynchronizerServiceStub,
    experiment_id: str = "",
    max_ended_waits: int = 0,
    seconds: float = CALL_SECONDS,
) -> synchronizer_pb2.GetStatusResponse:
    """Asks the synchronizer alone, for `state_of`."""
    request = synchronizer_pb2.GetStatusRequest(
        experiment_id=experiment_id, max_closed_waits=max_ended_waits
    )
    answer: synchronizer_pb2.GetStatusResponse = await synchronizer.GetStatus(
        request, timeout=seconds
    )
    return answer


async def ask_work(
    buffer: BufferServiceStub, tenant: str, experiment_id: str, seconds: float = CALL_SECONDS
) -> buffer_pb2.GetBufferStatusResponse:
    """Asks the buffer alone, for `state_of`."""
    request = buffer_pb2.GetBufferStatusRequest(tenant=tenant, experiment_id=experiment_id)
    answer: buffer_pb2.GetBufferStatusResponse = await buffer.GetBufferStatus(
        request, timeout=seconds
    )
    return answer


def _answer_or_reason(answer: Any) -> Any:
    """Returns the answer, or the reason why it is missing."""
    if isinstance(answer, grpc.aio.AioRpcError):
        return str(answer.details() or answer.code().name)
    if isinstance(answer, BaseException):
        raise answer
    return answer
