from trinity.api.v1 import experience_pb2 as _experience_pb2
from trinity.api.v1 import synchronizer_pb2 as _synchronizer_pb2
from trinity.api.v1 import taskset_pb2 as _taskset_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AssignmentKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ASSIGNMENT_KIND_UNSPECIFIED: _ClassVar[AssignmentKind]
    ASSIGNMENT_KIND_TRAIN: _ClassVar[AssignmentKind]
    ASSIGNMENT_KIND_EVAL: _ClassVar[AssignmentKind]
ASSIGNMENT_KIND_UNSPECIFIED: AssignmentKind
ASSIGNMENT_KIND_TRAIN: AssignmentKind
ASSIGNMENT_KIND_EVAL: AssignmentKind

class StageKey(_message.Message):
    __slots__ = ("tenant", "experiment_id", "stage")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    EXPERIMENT_ID_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    experiment_id: str
    stage: str
    def __init__(self, tenant: _Optional[str] = ..., experiment_id: _Optional[str] = ..., stage: _Optional[str] = ...) -> None: ...

class OpenStageRequest(_message.Message):
    __slots__ = ("key", "plan_json", "seed")
    KEY_FIELD_NUMBER: _ClassVar[int]
    PLAN_JSON_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    key: StageKey
    plan_json: str
    seed: int
    def __init__(self, key: _Optional[_Union[StageKey, _Mapping]] = ..., plan_json: _Optional[str] = ..., seed: _Optional[int] = ...) -> None: ...

class OpenStageResponse(_message.Message):
    __slots__ = ("num_tasks", "total_train_steps", "total_explore_steps", "state", "reason")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STATE_UNSPECIFIED: _ClassVar[OpenStageResponse.State]
        STATE_OPEN: _ClassVar[OpenStageResponse.State]
        STATE_READING: _ClassVar[OpenStageResponse.State]
    STATE_UNSPECIFIED: OpenStageResponse.State
    STATE_OPEN: OpenStageResponse.State
    STATE_READING: OpenStageResponse.State
    NUM_TASKS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_TRAIN_STEPS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_EXPLORE_STEPS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    num_tasks: int
    total_train_steps: int
    total_explore_steps: int
    state: OpenStageResponse.State
    reason: str
    def __init__(self, num_tasks: _Optional[int] = ..., total_train_steps: _Optional[int] = ..., total_explore_steps: _Optional[int] = ..., state: _Optional[_Union[OpenStageResponse.State, str]] = ..., reason: _Optional[str] = ...) -> None: ...

class SubmitTasksetRequest(_message.Message):
    __slots__ = ("header", "row", "rows", "end", "num_before")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    ROW_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    NUM_BEFORE_FIELD_NUMBER: _ClassVar[int]
    header: TasksetHeader
    row: TaskRow
    rows: TaskRows
    end: TasksetEnd
    num_before: int
    def __init__(self, header: _Optional[_Union[TasksetHeader, _Mapping]] = ..., row: _Optional[_Union[TaskRow, _Mapping]] = ..., rows: _Optional[_Union[TaskRows, _Mapping]] = ..., end: _Optional[_Union[TasksetEnd, _Mapping]] = ..., num_before: _Optional[int] = ...) -> None: ...

class TasksetHeader(_message.Message):
    __slots__ = ("tenant", "name", "request_id", "is_queue")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    IS_QUEUE_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    name: str
    request_id: str
    is_queue: bool
    def __init__(self, tenant: _Optional[str] = ..., name: _Optional[str] = ..., request_id: _Optional[str] = ..., is_queue: _Optional[bool] = ...) -> None: ...

class TaskRow(_message.Message):
    __slots__ = ("json",)
    JSON_FIELD_NUMBER: _ClassVar[int]
    json: str
    def __init__(self, json: _Optional[str] = ...) -> None: ...

class TaskRows(_message.Message):
    __slots__ = ("json",)
    JSON_FIELD_NUMBER: _ClassVar[int]
    json: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, json: _Optional[_Iterable[str]] = ...) -> None: ...

class TasksetEnd(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SubmitTasksetResponse(_message.Message):
    __slots__ = ("taskset_id", "num_stored", "refused", "num_refused")
    TASKSET_ID_FIELD_NUMBER: _ClassVar[int]
    NUM_STORED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    NUM_REFUSED_FIELD_NUMBER: _ClassVar[int]
    taskset_id: str
    num_stored: int
    refused: _containers.RepeatedCompositeFieldContainer[RefusedRow]
    num_refused: int
    def __init__(self, taskset_id: _Optional[str] = ..., num_stored: _Optional[int] = ..., refused: _Optional[_Iterable[_Union[RefusedRow, _Mapping]]] = ..., num_refused: _Optional[int] = ...) -> None: ...

class RefusedRow(_message.Message):
    __slots__ = ("index", "reason")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    index: int
    reason: str
    def __init__(self, index: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class LeaseAssignmentsRequest(_message.Message):
    __slots__ = ("key", "explorer_id", "max_assignments", "wait_seconds", "lease_seconds", "held")
    KEY_FIELD_NUMBER: _ClassVar[int]
    EXPLORER_ID_FIELD_NUMBER: _ClassVar[int]
    MAX_ASSIGNMENTS_FIELD_NUMBER: _ClassVar[int]
    WAIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    LEASE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    key: StageKey
    explorer_id: str
    max_assignments: int
    wait_seconds: float
    lease_seconds: float
    held: HeldLeases
    def __init__(self, key: _Optional[_Union[StageKey, _Mapping]] = ..., explorer_id: _Optional[str] = ..., max_assignments: _Optional[int] = ..., wait_seconds: _Optional[float] = ..., lease_seconds: _Optional[float] = ..., held: _Optional[_Union[HeldLeases, _Mapping]] = ...) -> None: ...

class HeldLeases(_message.Message):
    __slots__ = ("leases",)
    LEASES_FIELD_NUMBER: _ClassVar[int]
    leases: _containers.RepeatedCompositeFieldContainer[Lease]
    def __init__(self, leases: _Optional[_Iterable[_Union[Lease, _Mapping]]] = ...) -> None: ...

class LeaseAssignmentsResponse(_message.Message):
    __slots__ = ("state", "reason", "assignments", "remaining_seconds", "waits_for", "session_key")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STATE_UNSPECIFIED: _ClassVar[LeaseAssignmentsResponse.State]
        STATE_GRANTED: _ClassVar[LeaseAssignmentsResponse.State]
        STATE_WAITING: _ClassVar[LeaseAssignmentsResponse.State]
        STATE_DRAINED: _ClassVar[LeaseAssignmentsResponse.State]
        STATE_CANCELLED: _ClassVar[LeaseAssignmentsResponse.State]
    STATE_UNSPECIFIED: LeaseAssignmentsResponse.State
    STATE_GRANTED: LeaseAssignmentsResponse.State
    STATE_WAITING: LeaseAssignmentsResponse.State
    STATE_DRAINED: LeaseAssignmentsResponse.State
    STATE_CANCELLED: LeaseAssignmentsResponse.State
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENTS_FIELD_NUMBER: _ClassVar[int]
    REMAINING_SECONDS_FIELD_NUMBER: _ClassVar[int]
    WAITS_FOR_FIELD_NUMBER: _ClassVar[int]
    SESSION_KEY_FIELD_NUMBER: _ClassVar[int]
    state: LeaseAssignmentsResponse.State
    reason: str
    assignments: _containers.RepeatedCompositeFieldContainer[Assignment]
    remaining_seconds: float
    waits_for: _synchronizer_pb2.WaitKind
    session_key: bytes
    def __init__(self, state: _Optional[_Union[LeaseAssignmentsResponse.State, str]] = ..., reason: _Optional[str] = ..., assignments: _Optional[_Iterable[_Union[Assignment, _Mapping]]] = ..., remaining_seconds: _Optional[float] = ..., waits_for: _Optional[_Union[_synchronizer_pb2.WaitKind, str]] = ..., session_key: _Optional[bytes] = ...) -> None: ...

class Assignment(_message.Message):
    __slots__ = ("id", "kind", "explore_step", "position", "taskset", "task_index", "task_json", "runs", "first_attempt", "lease_token", "required_version", "required_incarnation", "repeat_times", "traceparent", "has_turns", "numbers_calls")
    ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    EXPLORE_STEP_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    TASKSET_FIELD_NUMBER: _ClassVar[int]
    TASK_INDEX_FIELD_NUMBER: _ClassVar[int]
    TASK_JSON_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    FIRST_ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    LEASE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    REQUIRED_VERSION_FIELD_NUMBER: _ClassVar[int]
    REQUIRED_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    REPEAT_TIMES_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    HAS_TURNS_FIELD_NUMBER: _ClassVar[int]
    NUMBERS_CALLS_FIELD_NUMBER: _ClassVar[int]
    id: str
    kind: AssignmentKind
    explore_step: int
    position: int
    taskset: str
    task_index: int
    task_json: str
    runs: _containers.RepeatedScalarFieldContainer[int]
    first_attempt: int
    lease_token: str
    required_version: int
    required_incarnation: int
    repeat_times: int
    traceparent: str
    has_turns: bool
    numbers_calls: bool
    def __init__(self, id: _Optional[str] = ..., kind: _Optional[_Union[AssignmentKind, str]] = ..., explore_step: _Optional[int] = ..., position: _Optional[int] = ..., taskset: _Optional[str] = ..., task_index: _Optional[int] = ..., task_json: _Optional[str] = ..., runs: _Optional[_Iterable[int]] = ..., first_attempt: _Optional[int] = ..., lease_token: _Optional[str] = ..., required_version: _Optional[int] = ..., required_incarnation: _Optional[int] = ..., repeat_times: _Optional[int] = ..., traceparent: _Optional[str] = ..., has_turns: _Optional[bool] = ..., numbers_calls: _Optional[bool] = ...) -> None: ...

class Lease(_message.Message):
    __slots__ = ("assignment_id", "lease_token")
    ASSIGNMENT_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    assignment_id: str
    lease_token: str
    def __init__(self, assignment_id: _Optional[str] = ..., lease_token: _Optional[str] = ...) -> None: ...

class RenewLeasesRequest(_message.Message):
    __slots__ = ("key", "explorer_id", "leases", "lease_seconds")
    KEY_FIELD_NUMBER: _ClassVar[int]
    EXPLORER_ID_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    LEASE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    key: StageKey
    explorer_id: str
    leases: _containers.RepeatedCompositeFieldContainer[Lease]
    lease_seconds: float
    def __init__(self, key: _Optional[_Union[StageKey, _Mapping]] = ..., explorer_id: _Optional[str] = ..., leases: _Optional[_Iterable[_Union[Lease, _Mapping]]] = ..., lease_seconds: _Optional[float] = ...) -> None: ...

class RenewLeasesResponse(_message.Message):
    __slots__ = ("lost_assignment_ids", "remaining_seconds")
    LOST_ASSIGNMENT_IDS_FIELD_NUMBER: _ClassVar[int]
    REMAINING_SECONDS_FIELD_NUMBER: _ClassVar[int]
    lost_assignment_ids: _containers.RepeatedScalarFieldContainer[str]
    remaining_seconds: float
    def __init__(self, lost_assignment_ids: _Optional[_Iterable[str]] = ..., remaining_seconds: _Optional[float] = ...) -> None: ...

class ReleaseLeasesRequest(_message.Message):
    __slots__ = ("key", "explorer_id", "leases")
    KEY_FIELD_NUMBER: _ClassVar[int]
    EXPLORER_ID_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    key: StageKey
    explorer_id: str
    leases: _containers.RepeatedCompositeFieldContainer[Lease]
    def __init__(self, key: _Optional[_Union[StageKey, _Mapping]] = ..., explorer_id: _Optional[str] = ..., leases: _Optional[_Iterable[_Union[Lease, _Mapping]]] = ...) -> None: ...

class ReleaseLeasesResponse(_message.Message):
    __slots__ = ("num_released",)
    NUM_RELEASED_FIELD_NUMBER: _ClassVar[int]
    num_released: int
    def __init__(self, num_released: _Optional[int] = ...) -> None: ...

class GetTurnsRequest(_message.Message):
    __slots__ = ("key", "lease", "run", "session_id", "turn_ids")
    KEY_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    TURN_IDS_FIELD_NUMBER: _ClassVar[int]
    key: StageKey
    lease: Lease
    run: int
    session_id: str
    turn_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, key: _Optional[_Union[StageKey, _Mapping]] = ..., lease: _Optional[_Union[Lease, _Mapping]] = ..., run: _Optional[int] = ..., session_id: _Optional[str] = ..., turn_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class GetTurnsResponse(_message.Message):
    __slots__ = ("turns",)
    TURNS_FIELD_NUMBER: _ClassVar[int]
    turns: _containers.RepeatedCompositeFieldContainer[_experience_pb2.SessionTurn]
    def __init__(self, turns: _Optional[_Iterable[_Union[_experience_pb2.SessionTurn, _Mapping]]] = ...) -> None: ...

class OpenSessionRequest(_message.Message):
    __slots__ = ("key", "name", "secret", "token")
    KEY_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    key: StageKey
    name: str
    secret: str
    token: str
    def __init__(self, key: _Optional[_Union[StageKey, _Mapping]] = ..., name: _Optional[str] = ..., secret: _Optional[str] = ..., token: _Optional[str] = ...) -> None: ...

class OpenSessionResponse(_message.Message):
    __slots__ = ("session_id", "secret")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    secret: str
    def __init__(self, session_id: _Optional[str] = ..., secret: _Optional[str] = ...) -> None: ...

class RewardCallsRequest(_message.Message):
    __slots__ = ("key", "session_id", "call_ids", "reward", "task")
    KEY_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    CALL_IDS_FIELD_NUMBER: _ClassVar[int]
    REWARD_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    key: StageKey
    session_id: str
    call_ids: _containers.RepeatedScalarFieldContainer[str]
    reward: float
    task: str
    def __init__(self, key: _Optional[_Union[StageKey, _Mapping]] = ..., session_id: _Optional[str] = ..., call_ids: _Optional[_Iterable[str]] = ..., reward: _Optional[float] = ..., task: _Optional[str] = ...) -> None: ...

class RewardCallsResponse(_message.Message):
    __slots__ = ("num_ready",)
    NUM_READY_FIELD_NUMBER: _ClassVar[int]
    num_ready: int
    def __init__(self, num_ready: _Optional[int] = ...) -> None: ...

class CommitSessionRequest(_message.Message):
    __slots__ = ("key", "session_id")
    KEY_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    key: StageKey
    session_id: str
    def __init__(self, key: _Optional[_Union[StageKey, _Mapping]] = ..., session_id: _Optional[str] = ...) -> None: ...

class CommitSessionResponse(_message.Message):
    __slots__ = ("explore_step", "num_groups", "num_calls", "num_single")
    EXPLORE_STEP_FIELD_NUMBER: _ClassVar[int]
    NUM_GROUPS_FIELD_NUMBER: _ClassVar[int]
    NUM_CALLS_FIELD_NUMBER: _ClassVar[int]
    NUM_SINGLE_FIELD_NUMBER: _ClassVar[int]
    explore_step: int
    num_groups: int
    num_calls: int
    num_single: int
    def __init__(self, explore_step: _Optional[int] = ..., num_groups: _Optional[int] = ..., num_calls: _Optional[int] = ..., num_single: _Optional[int] = ...) -> None: ...

class UploadBlobRequest(_message.Message):
    __slots__ = ("sha256", "chunk", "tenant", "media_type")
    SHA256_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    MEDIA_TYPE_FIELD_NUMBER: _ClassVar[int]
    sha256: bytes
    chunk: bytes
    tenant: str
    media_type: str
    def __init__(self, sha256: _Optional[bytes] = ..., chunk: _Optional[bytes] = ..., tenant: _Optional[str] = ..., media_type: _Optional[str] = ...) -> None: ...

class UploadBlobResponse(_message.Message):
    __slots__ = ("size",)
    SIZE_FIELD_NUMBER: _ClassVar[int]
    size: int
    def __init__(self, size: _Optional[int] = ...) -> None: ...

class ReadMediaRequest(_message.Message):
    __slots__ = ("tenant", "sha256")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    sha256: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, tenant: _Optional[str] = ..., sha256: _Optional[_Iterable[bytes]] = ...) -> None: ...

class ReadMediaResponse(_message.Message):
    __slots__ = ("sha256", "chunk")
    SHA256_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    sha256: bytes
    chunk: bytes
    def __init__(self, sha256: _Optional[bytes] = ..., chunk: _Optional[bytes] = ...) -> None: ...

class WatchCommitsRequest(_message.Message):
    __slots__ = ("producer", "sequences")
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    producer: str
    sequences: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, producer: _Optional[str] = ..., sequences: _Optional[_Iterable[int]] = ...) -> None: ...

class WatchCommitsResponse(_message.Message):
    __slots__ = ("reports",)
    REPORTS_FIELD_NUMBER: _ClassVar[int]
    reports: _containers.RepeatedCompositeFieldContainer[CommitReport]
    def __init__(self, reports: _Optional[_Iterable[_Union[CommitReport, _Mapping]]] = ...) -> None: ...

class CommitReport(_message.Message):
    __slots__ = ("sequence", "state", "reason")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STATE_UNSPECIFIED: _ClassVar[CommitReport.State]
        STATE_COMMITTED: _ClassVar[CommitReport.State]
        STATE_SUPERSEDED: _ClassVar[CommitReport.State]
        STATE_LATE: _ClassVar[CommitReport.State]
        STATE_REJECTED: _ClassVar[CommitReport.State]
    STATE_UNSPECIFIED: CommitReport.State
    STATE_COMMITTED: CommitReport.State
    STATE_SUPERSEDED: CommitReport.State
    STATE_LATE: CommitReport.State
    STATE_REJECTED: CommitReport.State
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    state: CommitReport.State
    reason: str
    def __init__(self, sequence: _Optional[int] = ..., state: _Optional[_Union[CommitReport.State, str]] = ..., reason: _Optional[str] = ...) -> None: ...

class BeginIncarnationRequest(_message.Message):
    __slots__ = ("key", "trainer_id")
    KEY_FIELD_NUMBER: _ClassVar[int]
    TRAINER_ID_FIELD_NUMBER: _ClassVar[int]
    key: StageKey
    trainer_id: str
    def __init__(self, key: _Optional[_Union[StageKey, _Mapping]] = ..., trainer_id: _Optional[str] = ...) -> None: ...

class BeginIncarnationResponse(_message.Message):
    __slots__ = ("incarnation", "line", "checkpoints", "recorded_step", "newest_version", "finished_step", "num_checkpoints_left_out", "restored")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    LINE_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    RECORDED_STEP_FIELD_NUMBER: _ClassVar[int]
    NEWEST_VERSION_FIELD_NUMBER: _ClassVar[int]
    FINISHED_STEP_FIELD_NUMBER: _ClassVar[int]
    NUM_CHECKPOINTS_LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    RESTORED_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    line: int
    checkpoints: _containers.RepeatedCompositeFieldContainer[Checkpoint]
    recorded_step: int
    newest_version: PublishedVersion
    finished_step: int
    num_checkpoints_left_out: int
    restored: int
    def __init__(self, incarnation: _Optional[int] = ..., line: _Optional[int] = ..., checkpoints: _Optional[_Iterable[_Union[Checkpoint, _Mapping]]] = ..., recorded_step: _Optional[int] = ..., newest_version: _Optional[_Union[PublishedVersion, _Mapping]] = ..., finished_step: _Optional[int] = ..., num_checkpoints_left_out: _Optional[int] = ..., restored: _Optional[int] = ...) -> None: ...

class Checkpoint(_message.Message):
    __slots__ = ("step", "incarnation", "path", "manifest_sha256", "lineage_sha256")
    STEP_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_SHA256_FIELD_NUMBER: _ClassVar[int]
    LINEAGE_SHA256_FIELD_NUMBER: _ClassVar[int]
    step: int
    incarnation: int
    path: str
    manifest_sha256: bytes
    lineage_sha256: bytes
    def __init__(self, step: _Optional[int] = ..., incarnation: _Optional[int] = ..., path: _Optional[str] = ..., manifest_sha256: _Optional[bytes] = ..., lineage_sha256: _Optional[bytes] = ...) -> None: ...

class PublishedVersion(_message.Message):
    __slots__ = ("version", "incarnation", "weights_sha256", "lineage_sha256", "weights_blake3")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_SHA256_FIELD_NUMBER: _ClassVar[int]
    LINEAGE_SHA256_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_BLAKE3_FIELD_NUMBER: _ClassVar[int]
    version: int
    incarnation: int
    weights_sha256: bytes
    lineage_sha256: bytes
    weights_blake3: bytes
    def __init__(self, version: _Optional[int] = ..., incarnation: _Optional[int] = ..., weights_sha256: _Optional[bytes] = ..., lineage_sha256: _Optional[bytes] = ..., weights_blake3: _Optional[bytes] = ...) -> None: ...

class RecordVersionRequest(_message.Message):
    __slots__ = ("key", "version")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    key: StageKey
    version: PublishedVersion
    def __init__(self, key: _Optional[_Union[StageKey, _Mapping]] = ..., version: _Optional[_Union[PublishedVersion, _Mapping]] = ...) -> None: ...

class RecordVersionResponse(_message.Message):
    __slots__ = ("pinned_versions", "best_versions")
    PINNED_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    BEST_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    pinned_versions: _containers.RepeatedScalarFieldContainer[int]
    best_versions: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, pinned_versions: _Optional[_Iterable[int]] = ..., best_versions: _Optional[_Iterable[int]] = ...) -> None: ...

class GetBatchRequest(_message.Message):
    __slots__ = ("key", "incarnation", "step", "wait_seconds", "takes_incomplete")
    KEY_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    WAIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    TAKES_INCOMPLETE_FIELD_NUMBER: _ClassVar[int]
    key: StageKey
    incarnation: int
    step: int
    wait_seconds: float
    takes_incomplete: bool
    def __init__(self, key: _Optional[_Union[StageKey, _Mapping]] = ..., incarnation: _Optional[int] = ..., step: _Optional[int] = ..., wait_seconds: _Optional[float] = ..., takes_incomplete: _Optional[bool] = ...) -> None: ...

class GetBatchResponse(_message.Message):
    __slots__ = ("head", "rows")
    HEAD_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    head: BatchHead
    rows: BatchRows
    def __init__(self, head: _Optional[_Union[BatchHead, _Mapping]] = ..., rows: _Optional[_Union[BatchRows, _Mapping]] = ...) -> None: ...

class BatchHead(_message.Message):
    __slots__ = ("state", "reason", "num_rows", "replayed", "metrics", "num_wanted", "waits_for", "rows_sha256", "oldest_version")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STATE_UNSPECIFIED: _ClassVar[BatchHead.State]
        STATE_READY: _ClassVar[BatchHead.State]
        STATE_WAITING: _ClassVar[BatchHead.State]
        STATE_DRAINED: _ClassVar[BatchHead.State]
        STATE_CANCELLED: _ClassVar[BatchHead.State]
        STATE_VERSION_WANTED: _ClassVar[BatchHead.State]
    STATE_UNSPECIFIED: BatchHead.State
    STATE_READY: BatchHead.State
    STATE_WAITING: BatchHead.State
    STATE_DRAINED: BatchHead.State
    STATE_CANCELLED: BatchHead.State
    STATE_VERSION_WANTED: BatchHead.State
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    NUM_ROWS_FIELD_NUMBER: _ClassVar[int]
    REPLAYED_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    NUM_WANTED_FIELD_NUMBER: _ClassVar[int]
    WAITS_FOR_FIELD_NUMBER: _ClassVar[int]
    ROWS_SHA256_FIELD_NUMBER: _ClassVar[int]
    OLDEST_VERSION_FIELD_NUMBER: _ClassVar[int]
    state: BatchHead.State
    reason: str
    num_rows: int
    replayed: bool
    metrics: _containers.ScalarMap[str, float]
    num_wanted: int
    waits_for: _synchronizer_pb2.WaitKind
    rows_sha256: bytes
    oldest_version: int
    def __init__(self, state: _Optional[_Union[BatchHead.State, str]] = ..., reason: _Optional[str] = ..., num_rows: _Optional[int] = ..., replayed: _Optional[bool] = ..., metrics: _Optional[_Mapping[str, float]] = ..., num_wanted: _Optional[int] = ..., waits_for: _Optional[_Union[_synchronizer_pb2.WaitKind, str]] = ..., rows_sha256: _Optional[bytes] = ..., oldest_version: _Optional[int] = ...) -> None: ...

class BatchRows(_message.Message):
    __slots__ = ("rows",)
    ROWS_FIELD_NUMBER: _ClassVar[int]
    rows: _containers.RepeatedCompositeFieldContainer[BatchRow]
    def __init__(self, rows: _Optional[_Iterable[_Union[BatchRow, _Mapping]]] = ...) -> None: ...

class BatchRow(_message.Message):
    __slots__ = ("position", "experience", "row_json", "advantage", "weight", "row_index")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    EXPERIENCE_FIELD_NUMBER: _ClassVar[int]
    ROW_JSON_FIELD_NUMBER: _ClassVar[int]
    ADVANTAGE_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    ROW_INDEX_FIELD_NUMBER: _ClassVar[int]
    position: int
    experience: _experience_pb2.Experience
    row_json: str
    advantage: float
    weight: float
    row_index: int
    def __init__(self, position: _Optional[int] = ..., experience: _Optional[_Union[_experience_pb2.Experience, _Mapping]] = ..., row_json: _Optional[str] = ..., advantage: _Optional[float] = ..., weight: _Optional[float] = ..., row_index: _Optional[int] = ...) -> None: ...

class ReportStepRequest(_message.Message):
    __slots__ = ("key", "incarnation", "step", "metrics", "rows")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    KEY_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    key: StageKey
    incarnation: int
    step: int
    metrics: _containers.ScalarMap[str, float]
    rows: _containers.RepeatedCompositeFieldContainer[RowFeedback]
    def __init__(self, key: _Optional[_Union[StageKey, _Mapping]] = ..., incarnation: _Optional[int] = ..., step: _Optional[int] = ..., metrics: _Optional[_Mapping[str, float]] = ..., rows: _Optional[_Iterable[_Union[RowFeedback, _Mapping]]] = ...) -> None: ...

class RowFeedback(_message.Message):
    __slots__ = ("position", "mean_ratio", "advantage", "tokens")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    MEAN_RATIO_FIELD_NUMBER: _ClassVar[int]
    ADVANTAGE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    position: int
    mean_ratio: float
    advantage: float
    tokens: TokenValues
    def __init__(self, position: _Optional[int] = ..., mean_ratio: _Optional[float] = ..., advantage: _Optional[float] = ..., tokens: _Optional[_Union[TokenValues, _Mapping]] = ...) -> None: ...

class TokenValues(_message.Message):
    __slots__ = ("logprobs", "advantages")
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    ADVANTAGES_FIELD_NUMBER: _ClassVar[int]
    logprobs: bytes
    advantages: bytes
    def __init__(self, logprobs: _Optional[bytes] = ..., advantages: _Optional[bytes] = ...) -> None: ...

class ReportStepResponse(_message.Message):
    __slots__ = ("pinned_versions", "best_versions")
    PINNED_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    BEST_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    pinned_versions: _containers.RepeatedScalarFieldContainer[int]
    best_versions: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, pinned_versions: _Optional[_Iterable[int]] = ..., best_versions: _Optional[_Iterable[int]] = ...) -> None: ...

class CommitCheckpointRequest(_message.Message):
    __slots__ = ("key", "checkpoint")
    KEY_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    key: StageKey
    checkpoint: Checkpoint
    def __init__(self, key: _Optional[_Union[StageKey, _Mapping]] = ..., checkpoint: _Optional[_Union[Checkpoint, _Mapping]] = ...) -> None: ...

class CommitCheckpointResponse(_message.Message):
    __slots__ = ("removable",)
    REMOVABLE_FIELD_NUMBER: _ClassVar[int]
    removable: _containers.RepeatedCompositeFieldContainer[Checkpoint]
    def __init__(self, removable: _Optional[_Iterable[_Union[Checkpoint, _Mapping]]] = ...) -> None: ...

class FinishTrainingRequest(_message.Message):
    __slots__ = ("key", "incarnation", "step", "wait_seconds")
    KEY_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    WAIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    key: StageKey
    incarnation: int
    step: int
    wait_seconds: float
    def __init__(self, key: _Optional[_Union[StageKey, _Mapping]] = ..., incarnation: _Optional[int] = ..., step: _Optional[int] = ..., wait_seconds: _Optional[float] = ...) -> None: ...

class FinishTrainingResponse(_message.Message):
    __slots__ = ("state", "reason", "best_versions")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STATE_UNSPECIFIED: _ClassVar[FinishTrainingResponse.State]
        STATE_EVALUATING: _ClassVar[FinishTrainingResponse.State]
        STATE_FINISHED: _ClassVar[FinishTrainingResponse.State]
        STATE_CANCELLED: _ClassVar[FinishTrainingResponse.State]
    STATE_UNSPECIFIED: FinishTrainingResponse.State
    STATE_EVALUATING: FinishTrainingResponse.State
    STATE_FINISHED: FinishTrainingResponse.State
    STATE_CANCELLED: FinishTrainingResponse.State
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    BEST_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    state: FinishTrainingResponse.State
    reason: str
    best_versions: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, state: _Optional[_Union[FinishTrainingResponse.State, str]] = ..., reason: _Optional[str] = ..., best_versions: _Optional[_Iterable[int]] = ...) -> None: ...

class CancelStageRequest(_message.Message):
    __slots__ = ("key", "reason")
    KEY_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    key: StageKey
    reason: str
    def __init__(self, key: _Optional[_Union[StageKey, _Mapping]] = ..., reason: _Optional[str] = ...) -> None: ...

class CancelStageResponse(_message.Message):
    __slots__ = ("num_revoked",)
    NUM_REVOKED_FIELD_NUMBER: _ClassVar[int]
    num_revoked: int
    def __init__(self, num_revoked: _Optional[int] = ...) -> None: ...

class WatchProgressRequest(_message.Message):
    __slots__ = ("tenant", "experiment_id", "after_event")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    EXPERIMENT_ID_FIELD_NUMBER: _ClassVar[int]
    AFTER_EVENT_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    experiment_id: str
    after_event: int
    def __init__(self, tenant: _Optional[str] = ..., experiment_id: _Optional[str] = ..., after_event: _Optional[int] = ...) -> None: ...

class WatchProgressResponse(_message.Message):
    __slots__ = ("events",)
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[ProgressEvent]
    def __init__(self, events: _Optional[_Iterable[_Union[ProgressEvent, _Mapping]]] = ...) -> None: ...

class ProgressEvent(_message.Message):
    __slots__ = ("number", "stage", "unix_millis", "opened", "batch", "step", "evaluation", "samples", "notice", "changed")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    UNIX_MILLIS_FIELD_NUMBER: _ClassVar[int]
    OPENED_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    NOTICE_FIELD_NUMBER: _ClassVar[int]
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    number: int
    stage: str
    unix_millis: int
    opened: StageOpened
    batch: BatchComposed
    step: StepTrained
    evaluation: EvaluationDone
    samples: Samples
    notice: Notice
    changed: SettingsChanged
    def __init__(self, number: _Optional[int] = ..., stage: _Optional[str] = ..., unix_millis: _Optional[int] = ..., opened: _Optional[_Union[StageOpened, _Mapping]] = ..., batch: _Optional[_Union[BatchComposed, _Mapping]] = ..., step: _Optional[_Union[StepTrained, _Mapping]] = ..., evaluation: _Optional[_Union[EvaluationDone, _Mapping]] = ..., samples: _Optional[_Union[Samples, _Mapping]] = ..., notice: _Optional[_Union[Notice, _Mapping]] = ..., changed: _Optional[_Union[SettingsChanged, _Mapping]] = ...) -> None: ...

class StageOpened(_message.Message):
    __slots__ = ("total_train_steps", "total_explore_steps", "num_tasks")
    TOTAL_TRAIN_STEPS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_EXPLORE_STEPS_FIELD_NUMBER: _ClassVar[int]
    NUM_TASKS_FIELD_NUMBER: _ClassVar[int]
    total_train_steps: int
    total_explore_steps: int
    num_tasks: int
    def __init__(self, total_train_steps: _Optional[int] = ..., total_explore_steps: _Optional[int] = ..., num_tasks: _Optional[int] = ...) -> None: ...

class BatchComposed(_message.Message):
    __slots__ = ("step", "num_rows", "metrics")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    STEP_FIELD_NUMBER: _ClassVar[int]
    NUM_ROWS_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    step: int
    num_rows: int
    metrics: _containers.ScalarMap[str, float]
    def __init__(self, step: _Optional[int] = ..., num_rows: _Optional[int] = ..., metrics: _Optional[_Mapping[str, float]] = ...) -> None: ...

class StepTrained(_message.Message):
    __slots__ = ("step", "incarnation", "metrics", "replayed")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    STEP_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    REPLAYED_FIELD_NUMBER: _ClassVar[int]
    step: int
    incarnation: int
    metrics: _containers.ScalarMap[str, float]
    replayed: bool
    def __init__(self, step: _Optional[int] = ..., incarnation: _Optional[int] = ..., metrics: _Optional[_Mapping[str, float]] = ..., replayed: _Optional[bool] = ...) -> None: ...

class EvaluationDone(_message.Message):
    __slots__ = ("version", "taskset", "num_tasks", "num_failed", "metrics", "duration_seconds", "num_metrics_left_out", "num_runs", "failed_count_zero")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TASKSET_FIELD_NUMBER: _ClassVar[int]
    NUM_TASKS_FIELD_NUMBER: _ClassVar[int]
    NUM_FAILED_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    DURATION_SECONDS_FIELD_NUMBER: _ClassVar[int]
    NUM_METRICS_LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    NUM_RUNS_FIELD_NUMBER: _ClassVar[int]
    FAILED_COUNT_ZERO_FIELD_NUMBER: _ClassVar[int]
    version: int
    taskset: str
    num_tasks: int
    num_failed: int
    metrics: _containers.RepeatedCompositeFieldContainer[MetricSummary]
    duration_seconds: float
    num_metrics_left_out: int
    num_runs: int
    failed_count_zero: bool
    def __init__(self, version: _Optional[int] = ..., taskset: _Optional[str] = ..., num_tasks: _Optional[int] = ..., num_failed: _Optional[int] = ..., metrics: _Optional[_Iterable[_Union[MetricSummary, _Mapping]]] = ..., duration_seconds: _Optional[float] = ..., num_metrics_left_out: _Optional[int] = ..., num_runs: _Optional[int] = ..., failed_count_zero: _Optional[bool] = ...) -> None: ...

class MetricSummary(_message.Message):
    __slots__ = ("name", "mean", "standard_error", "num_tasks", "of_runs", "of_tasks")
    class OfRunsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class OfTasksEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    MEAN_FIELD_NUMBER: _ClassVar[int]
    STANDARD_ERROR_FIELD_NUMBER: _ClassVar[int]
    NUM_TASKS_FIELD_NUMBER: _ClassVar[int]
    OF_RUNS_FIELD_NUMBER: _ClassVar[int]
    OF_TASKS_FIELD_NUMBER: _ClassVar[int]
    name: str
    mean: float
    standard_error: float
    num_tasks: int
    of_runs: _containers.ScalarMap[str, float]
    of_tasks: _containers.ScalarMap[str, float]
    def __init__(self, name: _Optional[str] = ..., mean: _Optional[float] = ..., standard_error: _Optional[float] = ..., num_tasks: _Optional[int] = ..., of_runs: _Optional[_Mapping[str, float]] = ..., of_tasks: _Optional[_Mapping[str, float]] = ...) -> None: ...

class Samples(_message.Message):
    __slots__ = ("samples",)
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    samples: _containers.RepeatedCompositeFieldContainer[Sample]
    def __init__(self, samples: _Optional[_Iterable[_Union[Sample, _Mapping]]] = ...) -> None: ...

class Sample(_message.Message):
    __slots__ = ("prompt", "response", "reward")
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    REWARD_FIELD_NUMBER: _ClassVar[int]
    prompt: str
    response: str
    reward: float
    def __init__(self, prompt: _Optional[str] = ..., response: _Optional[str] = ..., reward: _Optional[float] = ...) -> None: ...

class SettingsChanged(_message.Message):
    __slots__ = ("changes", "num_left_out")
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    NUM_LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    changes: _containers.RepeatedCompositeFieldContainer[SettingChange]
    num_left_out: int
    def __init__(self, changes: _Optional[_Iterable[_Union[SettingChange, _Mapping]]] = ..., num_left_out: _Optional[int] = ...) -> None: ...

class SettingChange(_message.Message):
    __slots__ = ("key", "before", "now", "from_step", "only_rounds")
    KEY_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    NOW_FIELD_NUMBER: _ClassVar[int]
    FROM_STEP_FIELD_NUMBER: _ClassVar[int]
    ONLY_ROUNDS_FIELD_NUMBER: _ClassVar[int]
    key: str
    before: str
    now: str
    from_step: int
    only_rounds: bool
    def __init__(self, key: _Optional[str] = ..., before: _Optional[str] = ..., now: _Optional[str] = ..., from_step: _Optional[int] = ..., only_rounds: _Optional[bool] = ...) -> None: ...

class Notice(_message.Message):
    __slots__ = ("text",)
    TEXT_FIELD_NUMBER: _ClassVar[int]
    text: str
    def __init__(self, text: _Optional[str] = ...) -> None: ...

class GetBufferStatusRequest(_message.Message):
    __slots__ = ("tenant", "experiment_id")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    EXPERIMENT_ID_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    experiment_id: str
    def __init__(self, tenant: _Optional[str] = ..., experiment_id: _Optional[str] = ...) -> None: ...

class GetBufferStatusResponse(_message.Message):
    __slots__ = ("stages", "num_stages_left_out")
    STAGES_FIELD_NUMBER: _ClassVar[int]
    NUM_STAGES_LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    stages: _containers.RepeatedCompositeFieldContainer[StageStatus]
    num_stages_left_out: int
    def __init__(self, stages: _Optional[_Iterable[_Union[StageStatus, _Mapping]]] = ..., num_stages_left_out: _Optional[int] = ...) -> None: ...

class StageStatus(_message.Message):
    __slots__ = ("key", "explore_step", "trained_step", "num_pending", "num_leased", "num_ready", "num_dead_letters", "num_stream_pending", "total_train_steps", "step_age_seconds", "step_seconds", "num_recent_runs", "num_recent_lost", "recent_loss", "refill_round", "replay", "task_pipelines", "num_refill_tasks", "dead_letter_reason", "num_task_pipelines_left_out", "changes", "idle_share")
    KEY_FIELD_NUMBER: _ClassVar[int]
    EXPLORE_STEP_FIELD_NUMBER: _ClassVar[int]
    TRAINED_STEP_FIELD_NUMBER: _ClassVar[int]
    NUM_PENDING_FIELD_NUMBER: _ClassVar[int]
    NUM_LEASED_FIELD_NUMBER: _ClassVar[int]
    NUM_READY_FIELD_NUMBER: _ClassVar[int]
    NUM_DEAD_LETTERS_FIELD_NUMBER: _ClassVar[int]
    NUM_STREAM_PENDING_FIELD_NUMBER: _ClassVar[int]
    TOTAL_TRAIN_STEPS_FIELD_NUMBER: _ClassVar[int]
    STEP_AGE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    STEP_SECONDS_FIELD_NUMBER: _ClassVar[int]
    NUM_RECENT_RUNS_FIELD_NUMBER: _ClassVar[int]
    NUM_RECENT_LOST_FIELD_NUMBER: _ClassVar[int]
    RECENT_LOSS_FIELD_NUMBER: _ClassVar[int]
    REFILL_ROUND_FIELD_NUMBER: _ClassVar[int]
    REPLAY_FIELD_NUMBER: _ClassVar[int]
    TASK_PIPELINES_FIELD_NUMBER: _ClassVar[int]
    NUM_REFILL_TASKS_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTER_REASON_FIELD_NUMBER: _ClassVar[int]
    NUM_TASK_PIPELINES_LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    IDLE_SHARE_FIELD_NUMBER: _ClassVar[int]
    key: StageKey
    explore_step: int
    trained_step: int
    num_pending: int
    num_leased: int
    num_ready: int
    num_dead_letters: int
    num_stream_pending: int
    total_train_steps: int
    step_age_seconds: float
    step_seconds: float
    num_recent_runs: int
    num_recent_lost: int
    recent_loss: str
    refill_round: int
    replay: ReplayStatus
    task_pipelines: _containers.RepeatedCompositeFieldContainer[TaskPipelineStatus]
    num_refill_tasks: int
    dead_letter_reason: str
    num_task_pipelines_left_out: int
    changes: _containers.RepeatedCompositeFieldContainer[SettingChange]
    idle_share: float
    def __init__(self, key: _Optional[_Union[StageKey, _Mapping]] = ..., explore_step: _Optional[int] = ..., trained_step: _Optional[int] = ..., num_pending: _Optional[int] = ..., num_leased: _Optional[int] = ..., num_ready: _Optional[int] = ..., num_dead_letters: _Optional[int] = ..., num_stream_pending: _Optional[int] = ..., total_train_steps: _Optional[int] = ..., step_age_seconds: _Optional[float] = ..., step_seconds: _Optional[float] = ..., num_recent_runs: _Optional[int] = ..., num_recent_lost: _Optional[int] = ..., recent_loss: _Optional[str] = ..., refill_round: _Optional[int] = ..., replay: _Optional[_Union[ReplayStatus, _Mapping]] = ..., task_pipelines: _Optional[_Iterable[_Union[TaskPipelineStatus, _Mapping]]] = ..., num_refill_tasks: _Optional[int] = ..., dead_letter_reason: _Optional[str] = ..., num_task_pipelines_left_out: _Optional[int] = ..., changes: _Optional[_Iterable[_Union[SettingChange, _Mapping]]] = ..., idle_share: _Optional[float] = ...) -> None: ...

class TaskPipelineStatus(_message.Message):
    __slots__ = ("taskset", "num_rows", "counts")
    TASKSET_FIELD_NUMBER: _ClassVar[int]
    NUM_ROWS_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    taskset: str
    num_rows: int
    counts: _taskset_pb2.TaskPipelineCounts
    def __init__(self, taskset: _Optional[str] = ..., num_rows: _Optional[int] = ..., counts: _Optional[_Union[_taskset_pb2.TaskPipelineCounts, _Mapping]] = ...) -> None: ...

class ReplayStatus(_message.Message):
    __slots__ = ("num_trained", "num_replayed", "max_uses", "num_waiting", "num_dropped")
    NUM_TRAINED_FIELD_NUMBER: _ClassVar[int]
    NUM_REPLAYED_FIELD_NUMBER: _ClassVar[int]
    MAX_USES_FIELD_NUMBER: _ClassVar[int]
    NUM_WAITING_FIELD_NUMBER: _ClassVar[int]
    NUM_DROPPED_FIELD_NUMBER: _ClassVar[int]
    num_trained: int
    num_replayed: int
    max_uses: int
    num_waiting: int
    num_dropped: int
    def __init__(self, num_trained: _Optional[int] = ..., num_replayed: _Optional[int] = ..., max_uses: _Optional[int] = ..., num_waiting: _Optional[int] = ..., num_dropped: _Optional[int] = ...) -> None: ...
