from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ExperimentState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EXPERIMENT_STATE_UNSPECIFIED: _ClassVar[ExperimentState]
    EXPERIMENT_STATE_RUNNING: _ClassVar[ExperimentState]
    EXPERIMENT_STATE_FINISHED: _ClassVar[ExperimentState]
    EXPERIMENT_STATE_FAILED: _ClassVar[ExperimentState]
    EXPERIMENT_STATE_CANCELLED: _ClassVar[ExperimentState]

class StageState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STAGE_STATE_UNSPECIFIED: _ClassVar[StageState]
    STAGE_STATE_PENDING: _ClassVar[StageState]
    STAGE_STATE_RUNNING: _ClassVar[StageState]
    STAGE_STATE_FINISHED: _ClassVar[StageState]
    STAGE_STATE_FAILED: _ClassVar[StageState]

class Role(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROLE_UNSPECIFIED: _ClassVar[Role]
    ROLE_EXPLORER: _ClassVar[Role]
    ROLE_TRAINER: _ClassVar[Role]
    ROLE_BUFFER: _ClassVar[Role]

class MemberPhase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MEMBER_PHASE_UNSPECIFIED: _ClassVar[MemberPhase]
    MEMBER_PHASE_PREPARING: _ClassVar[MemberPhase]
    MEMBER_PHASE_WORKING: _ClassVar[MemberPhase]
    MEMBER_PHASE_SERVING: _ClassVar[MemberPhase]
    MEMBER_PHASE_GONE: _ClassVar[MemberPhase]

class WaitKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WAIT_KIND_UNSPECIFIED: _ClassVar[WaitKind]
    WAIT_KIND_STATE: _ClassVar[WaitKind]
    WAIT_KIND_NO_ANSWER: _ClassVar[WaitKind]
    WAIT_KIND_COMMIT: _ClassVar[WaitKind]
    WAIT_KIND_REWARDS: _ClassVar[WaitKind]
    WAIT_KIND_TASKS: _ClassVar[WaitKind]
EXPERIMENT_STATE_UNSPECIFIED: ExperimentState
EXPERIMENT_STATE_RUNNING: ExperimentState
EXPERIMENT_STATE_FINISHED: ExperimentState
EXPERIMENT_STATE_FAILED: ExperimentState
EXPERIMENT_STATE_CANCELLED: ExperimentState
STAGE_STATE_UNSPECIFIED: StageState
STAGE_STATE_PENDING: StageState
STAGE_STATE_RUNNING: StageState
STAGE_STATE_FINISHED: StageState
STAGE_STATE_FAILED: StageState
ROLE_UNSPECIFIED: Role
ROLE_EXPLORER: Role
ROLE_TRAINER: Role
ROLE_BUFFER: Role
MEMBER_PHASE_UNSPECIFIED: MemberPhase
MEMBER_PHASE_PREPARING: MemberPhase
MEMBER_PHASE_WORKING: MemberPhase
MEMBER_PHASE_SERVING: MemberPhase
MEMBER_PHASE_GONE: MemberPhase
WAIT_KIND_UNSPECIFIED: WaitKind
WAIT_KIND_STATE: WaitKind
WAIT_KIND_NO_ANSWER: WaitKind
WAIT_KIND_COMMIT: WaitKind
WAIT_KIND_REWARDS: WaitKind
WAIT_KIND_TASKS: WaitKind

class Stage(_message.Message):
    __slots__ = ("name", "state", "roles", "finished_roles", "final_version")
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ROLES_FIELD_NUMBER: _ClassVar[int]
    FINISHED_ROLES_FIELD_NUMBER: _ClassVar[int]
    FINAL_VERSION_FIELD_NUMBER: _ClassVar[int]
    name: str
    state: StageState
    roles: _containers.RepeatedScalarFieldContainer[Role]
    finished_roles: _containers.RepeatedScalarFieldContainer[Role]
    final_version: Version
    def __init__(self, name: _Optional[str] = ..., state: _Optional[_Union[StageState, str]] = ..., roles: _Optional[_Iterable[_Union[Role, str]]] = ..., finished_roles: _Optional[_Iterable[_Union[Role, str]]] = ..., final_version: _Optional[_Union[Version, _Mapping]] = ...) -> None: ...

class Experiment(_message.Message):
    __slots__ = ("id", "tenant", "label", "state", "reason", "stages", "start_count", "turn")
    ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    START_COUNT_FIELD_NUMBER: _ClassVar[int]
    TURN_FIELD_NUMBER: _ClassVar[int]
    id: str
    tenant: str
    label: str
    state: ExperimentState
    reason: str
    stages: _containers.RepeatedCompositeFieldContainer[Stage]
    start_count: int
    turn: DeviceTurn
    def __init__(self, id: _Optional[str] = ..., tenant: _Optional[str] = ..., label: _Optional[str] = ..., state: _Optional[_Union[ExperimentState, str]] = ..., reason: _Optional[str] = ..., stages: _Optional[_Iterable[_Union[Stage, _Mapping]]] = ..., start_count: _Optional[int] = ..., turn: _Optional[_Union[DeviceTurn, _Mapping]] = ...) -> None: ...

class DeviceTurn(_message.Message):
    __slots__ = ("holder", "process", "reason", "held_seconds", "wishes")
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    HELD_SECONDS_FIELD_NUMBER: _ClassVar[int]
    WISHES_FIELD_NUMBER: _ClassVar[int]
    holder: Role
    process: str
    reason: str
    held_seconds: float
    wishes: _containers.RepeatedCompositeFieldContainer[DeviceWish]
    def __init__(self, holder: _Optional[_Union[Role, str]] = ..., process: _Optional[str] = ..., reason: _Optional[str] = ..., held_seconds: _Optional[float] = ..., wishes: _Optional[_Iterable[_Union[DeviceWish, _Mapping]]] = ...) -> None: ...

class DeviceWish(_message.Message):
    __slots__ = ("role", "reason", "waited_seconds")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    WAITED_SECONDS_FIELD_NUMBER: _ClassVar[int]
    role: Role
    reason: str
    waited_seconds: float
    def __init__(self, role: _Optional[_Union[Role, str]] = ..., reason: _Optional[str] = ..., waited_seconds: _Optional[float] = ...) -> None: ...

class Version(_message.Message):
    __slots__ = ("stage", "version", "incarnation", "kind", "base_version", "path", "manifest_sha256", "weights_sha256", "parent_version", "offer", "copy", "damage", "weights_blake3")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        KIND_UNSPECIFIED: _ClassVar[Version.Kind]
        KIND_FULL: _ClassVar[Version.Kind]
        KIND_LORA: _ClassVar[Version.Kind]
        KIND_DELTA: _ClassVar[Version.Kind]
    KIND_UNSPECIFIED: Version.Kind
    KIND_FULL: Version.Kind
    KIND_LORA: Version.Kind
    KIND_DELTA: Version.Kind
    STAGE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    BASE_VERSION_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_SHA256_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_SHA256_FIELD_NUMBER: _ClassVar[int]
    PARENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    OFFER_FIELD_NUMBER: _ClassVar[int]
    COPY_FIELD_NUMBER: _ClassVar[int]
    DAMAGE_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_BLAKE3_FIELD_NUMBER: _ClassVar[int]
    stage: str
    version: int
    incarnation: int
    kind: Version.Kind
    base_version: int
    path: str
    manifest_sha256: bytes
    weights_sha256: bytes
    parent_version: int
    offer: TransferOffer
    copy: int
    damage: str
    weights_blake3: bytes
    def __init__(self, stage: _Optional[str] = ..., version: _Optional[int] = ..., incarnation: _Optional[int] = ..., kind: _Optional[_Union[Version.Kind, str]] = ..., base_version: _Optional[int] = ..., path: _Optional[str] = ..., manifest_sha256: _Optional[bytes] = ..., weights_sha256: _Optional[bytes] = ..., parent_version: _Optional[int] = ..., offer: _Optional[_Union[TransferOffer, _Mapping]] = ..., copy: _Optional[int] = ..., damage: _Optional[str] = ..., weights_blake3: _Optional[bytes] = ...) -> None: ...

class TransferOffer(_message.Message):
    __slots__ = ("address", "group")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    address: str
    group: str
    def __init__(self, address: _Optional[str] = ..., group: _Optional[str] = ...) -> None: ...

class CreateExperimentRequest(_message.Message):
    __slots__ = ("tenant", "label", "plan_json", "keep_running")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    PLAN_JSON_FIELD_NUMBER: _ClassVar[int]
    KEEP_RUNNING_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    label: str
    plan_json: str
    keep_running: bool
    def __init__(self, tenant: _Optional[str] = ..., label: _Optional[str] = ..., plan_json: _Optional[str] = ..., keep_running: _Optional[bool] = ...) -> None: ...

class CreateExperimentResponse(_message.Message):
    __slots__ = ("experiment", "resumed")
    EXPERIMENT_FIELD_NUMBER: _ClassVar[int]
    RESUMED_FIELD_NUMBER: _ClassVar[int]
    experiment: Experiment
    resumed: bool
    def __init__(self, experiment: _Optional[_Union[Experiment, _Mapping]] = ..., resumed: _Optional[bool] = ...) -> None: ...

class GetExperimentRequest(_message.Message):
    __slots__ = ("experiment_id",)
    EXPERIMENT_ID_FIELD_NUMBER: _ClassVar[int]
    experiment_id: str
    def __init__(self, experiment_id: _Optional[str] = ...) -> None: ...

class GetExperimentResponse(_message.Message):
    __slots__ = ("experiment", "plan_json")
    EXPERIMENT_FIELD_NUMBER: _ClassVar[int]
    PLAN_JSON_FIELD_NUMBER: _ClassVar[int]
    experiment: Experiment
    plan_json: str
    def __init__(self, experiment: _Optional[_Union[Experiment, _Mapping]] = ..., plan_json: _Optional[str] = ...) -> None: ...

class WatchExperimentsRequest(_message.Message):
    __slots__ = ("tenant",)
    TENANT_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    def __init__(self, tenant: _Optional[str] = ...) -> None: ...

class WatchExperimentsResponse(_message.Message):
    __slots__ = ("experiments", "num_experiments_left_out")
    EXPERIMENTS_FIELD_NUMBER: _ClassVar[int]
    NUM_EXPERIMENTS_LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    experiments: _containers.RepeatedCompositeFieldContainer[Experiment]
    num_experiments_left_out: int
    def __init__(self, experiments: _Optional[_Iterable[_Union[Experiment, _Mapping]]] = ..., num_experiments_left_out: _Optional[int] = ...) -> None: ...

class WatchExperimentRequest(_message.Message):
    __slots__ = ("experiment_id",)
    EXPERIMENT_ID_FIELD_NUMBER: _ClassVar[int]
    experiment_id: str
    def __init__(self, experiment_id: _Optional[str] = ...) -> None: ...

class WatchExperimentResponse(_message.Message):
    __slots__ = ("experiment", "versions", "lost_versions", "num_versions_left_out")
    EXPERIMENT_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    LOST_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    NUM_VERSIONS_LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    experiment: Experiment
    versions: _containers.RepeatedCompositeFieldContainer[Version]
    lost_versions: _containers.RepeatedCompositeFieldContainer[Version]
    num_versions_left_out: int
    def __init__(self, experiment: _Optional[_Union[Experiment, _Mapping]] = ..., versions: _Optional[_Iterable[_Union[Version, _Mapping]]] = ..., lost_versions: _Optional[_Iterable[_Union[Version, _Mapping]]] = ..., num_versions_left_out: _Optional[int] = ...) -> None: ...

class PublishVersionRequest(_message.Message):
    __slots__ = ("experiment_id", "version")
    EXPERIMENT_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    experiment_id: str
    version: Version
    def __init__(self, experiment_id: _Optional[str] = ..., version: _Optional[_Union[Version, _Mapping]] = ...) -> None: ...

class PublishVersionResponse(_message.Message):
    __slots__ = ("pinned_versions",)
    PINNED_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    pinned_versions: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, pinned_versions: _Optional[_Iterable[int]] = ...) -> None: ...

class RetireVersionsRequest(_message.Message):
    __slots__ = ("experiment_id", "versions", "damage")
    EXPERIMENT_ID_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    DAMAGE_FIELD_NUMBER: _ClassVar[int]
    experiment_id: str
    versions: _containers.RepeatedCompositeFieldContainer[Version]
    damage: str
    def __init__(self, experiment_id: _Optional[str] = ..., versions: _Optional[_Iterable[_Union[Version, _Mapping]]] = ..., damage: _Optional[str] = ...) -> None: ...

class RetireVersionsResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReportDamageRequest(_message.Message):
    __slots__ = ("experiment_id", "version", "reason")
    EXPERIMENT_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    experiment_id: str
    version: Version
    reason: str
    def __init__(self, experiment_id: _Optional[str] = ..., version: _Optional[_Union[Version, _Mapping]] = ..., reason: _Optional[str] = ...) -> None: ...

class ReportDamageResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Wait(_message.Message):
    __slots__ = ("owner", "waits_for", "reason", "waited_seconds", "deadline_seconds", "kind", "experiment_id")
    OWNER_FIELD_NUMBER: _ClassVar[int]
    WAITS_FOR_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    WAITED_SECONDS_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    EXPERIMENT_ID_FIELD_NUMBER: _ClassVar[int]
    owner: str
    waits_for: str
    reason: str
    waited_seconds: float
    deadline_seconds: float
    kind: WaitKind
    experiment_id: str
    def __init__(self, owner: _Optional[str] = ..., waits_for: _Optional[str] = ..., reason: _Optional[str] = ..., waited_seconds: _Optional[float] = ..., deadline_seconds: _Optional[float] = ..., kind: _Optional[_Union[WaitKind, str]] = ..., experiment_id: _Optional[str] = ...) -> None: ...

class ClosedWait(_message.Message):
    __slots__ = ("number", "owner", "waits_for", "reason", "waited_seconds", "ended_seconds_ago", "experiment_id", "stage", "member_id", "role", "address")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    WAITS_FOR_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    WAITED_SECONDS_FIELD_NUMBER: _ClassVar[int]
    ENDED_SECONDS_AGO_FIELD_NUMBER: _ClassVar[int]
    EXPERIMENT_ID_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    number: int
    owner: str
    waits_for: str
    reason: str
    waited_seconds: float
    ended_seconds_ago: float
    experiment_id: str
    stage: str
    member_id: str
    role: Role
    address: str
    def __init__(self, number: _Optional[int] = ..., owner: _Optional[str] = ..., waits_for: _Optional[str] = ..., reason: _Optional[str] = ..., waited_seconds: _Optional[float] = ..., ended_seconds_ago: _Optional[float] = ..., experiment_id: _Optional[str] = ..., stage: _Optional[str] = ..., member_id: _Optional[str] = ..., role: _Optional[_Union[Role, str]] = ..., address: _Optional[str] = ...) -> None: ...

class Member(_message.Message):
    __slots__ = ("id", "role", "address", "experiment_id", "stage", "activity", "version", "pinned_versions", "waits", "silent_seconds", "is_shortened", "phase")
    ID_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    EXPERIMENT_ID_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    ACTIVITY_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PINNED_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    WAITS_FIELD_NUMBER: _ClassVar[int]
    SILENT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    IS_SHORTENED_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    id: str
    role: Role
    address: str
    experiment_id: str
    stage: str
    activity: str
    version: int
    pinned_versions: _containers.RepeatedScalarFieldContainer[int]
    waits: _containers.RepeatedCompositeFieldContainer[Wait]
    silent_seconds: float
    is_shortened: bool
    phase: MemberPhase
    def __init__(self, id: _Optional[str] = ..., role: _Optional[_Union[Role, str]] = ..., address: _Optional[str] = ..., experiment_id: _Optional[str] = ..., stage: _Optional[str] = ..., activity: _Optional[str] = ..., version: _Optional[int] = ..., pinned_versions: _Optional[_Iterable[int]] = ..., waits: _Optional[_Iterable[_Union[Wait, _Mapping]]] = ..., silent_seconds: _Optional[float] = ..., is_shortened: _Optional[bool] = ..., phase: _Optional[_Union[MemberPhase, str]] = ...) -> None: ...

class HeartbeatRequest(_message.Message):
    __slots__ = ("member", "closed_waits")
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    CLOSED_WAITS_FIELD_NUMBER: _ClassVar[int]
    member: Member
    closed_waits: _containers.RepeatedCompositeFieldContainer[ClosedWait]
    def __init__(self, member: _Optional[_Union[Member, _Mapping]] = ..., closed_waits: _Optional[_Iterable[_Union[ClosedWait, _Mapping]]] = ...) -> None: ...

class HeartbeatResponse(_message.Message):
    __slots__ = ("interval_seconds",)
    INTERVAL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    interval_seconds: float
    def __init__(self, interval_seconds: _Optional[float] = ...) -> None: ...

class RecordTurnRequest(_message.Message):
    __slots__ = ("experiment_id", "role", "state", "process", "reason", "sequence", "clock")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STATE_UNSPECIFIED: _ClassVar[RecordTurnRequest.State]
        STATE_WANTED: _ClassVar[RecordTurnRequest.State]
        STATE_HELD: _ClassVar[RecordTurnRequest.State]
        STATE_RELEASED: _ClassVar[RecordTurnRequest.State]
    STATE_UNSPECIFIED: RecordTurnRequest.State
    STATE_WANTED: RecordTurnRequest.State
    STATE_HELD: RecordTurnRequest.State
    STATE_RELEASED: RecordTurnRequest.State
    EXPERIMENT_ID_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    experiment_id: str
    role: Role
    state: RecordTurnRequest.State
    process: str
    reason: str
    sequence: int
    clock: str
    def __init__(self, experiment_id: _Optional[str] = ..., role: _Optional[_Union[Role, str]] = ..., state: _Optional[_Union[RecordTurnRequest.State, str]] = ..., process: _Optional[str] = ..., reason: _Optional[str] = ..., sequence: _Optional[int] = ..., clock: _Optional[str] = ...) -> None: ...

class RecordTurnResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class FinishRoleRequest(_message.Message):
    __slots__ = ("experiment_id", "stage", "role", "final_version")
    EXPERIMENT_ID_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    FINAL_VERSION_FIELD_NUMBER: _ClassVar[int]
    experiment_id: str
    stage: str
    role: Role
    final_version: Version
    def __init__(self, experiment_id: _Optional[str] = ..., stage: _Optional[str] = ..., role: _Optional[_Union[Role, str]] = ..., final_version: _Optional[_Union[Version, _Mapping]] = ...) -> None: ...

class FinishRoleResponse(_message.Message):
    __slots__ = ("state",)
    STATE_FIELD_NUMBER: _ClassVar[int]
    state: StageState
    def __init__(self, state: _Optional[_Union[StageState, str]] = ...) -> None: ...

class FailStageRequest(_message.Message):
    __slots__ = ("experiment_id", "stage", "role", "reason", "start_count")
    EXPERIMENT_ID_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    START_COUNT_FIELD_NUMBER: _ClassVar[int]
    experiment_id: str
    stage: str
    role: Role
    reason: str
    start_count: int
    def __init__(self, experiment_id: _Optional[str] = ..., stage: _Optional[str] = ..., role: _Optional[_Union[Role, str]] = ..., reason: _Optional[str] = ..., start_count: _Optional[int] = ...) -> None: ...

class FailStageResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CancelExperimentRequest(_message.Message):
    __slots__ = ("experiment_id", "reason")
    EXPERIMENT_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    experiment_id: str
    reason: str
    def __init__(self, experiment_id: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class CancelExperimentResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetStatusRequest(_message.Message):
    __slots__ = ("experiment_id", "label", "max_closed_waits")
    EXPERIMENT_ID_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    MAX_CLOSED_WAITS_FIELD_NUMBER: _ClassVar[int]
    experiment_id: str
    label: str
    max_closed_waits: int
    def __init__(self, experiment_id: _Optional[str] = ..., label: _Optional[str] = ..., max_closed_waits: _Optional[int] = ...) -> None: ...

class GetStatusResponse(_message.Message):
    __slots__ = ("experiments", "members", "num_members_left_out", "num_experiments_left_out", "closed_waits")
    EXPERIMENTS_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    NUM_MEMBERS_LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    NUM_EXPERIMENTS_LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    CLOSED_WAITS_FIELD_NUMBER: _ClassVar[int]
    experiments: _containers.RepeatedCompositeFieldContainer[Experiment]
    members: _containers.RepeatedCompositeFieldContainer[Member]
    num_members_left_out: int
    num_experiments_left_out: int
    closed_waits: _containers.RepeatedCompositeFieldContainer[ClosedWait]
    def __init__(self, experiments: _Optional[_Iterable[_Union[Experiment, _Mapping]]] = ..., members: _Optional[_Iterable[_Union[Member, _Mapping]]] = ..., num_members_left_out: _Optional[int] = ..., num_experiments_left_out: _Optional[int] = ..., closed_waits: _Optional[_Iterable[_Union[ClosedWait, _Mapping]]] = ...) -> None: ...
