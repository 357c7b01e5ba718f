from trinity.api.v1 import buffer_pb2 as _buffer_pb2
from trinity.api.v1 import experience_pb2 as _experience_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ExperienceState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EXPERIENCE_STATE_UNSPECIFIED: _ClassVar[ExperienceState]
    EXPERIENCE_STATE_RAW: _ClassVar[ExperienceState]
    EXPERIENCE_STATE_DERIVED: _ClassVar[ExperienceState]
    EXPERIENCE_STATE_READY: _ClassVar[ExperienceState]
    EXPERIENCE_STATE_BATCHED: _ClassVar[ExperienceState]
    EXPERIENCE_STATE_FILTERED: _ClassVar[ExperienceState]
    EXPERIENCE_STATE_EVAL: _ClassVar[ExperienceState]
    EXPERIENCE_STATE_SUPERSEDED: _ClassVar[ExperienceState]
    EXPERIENCE_STATE_LATE: _ClassVar[ExperienceState]
    EXPERIENCE_STATE_EXCLUDED: _ClassVar[ExperienceState]
    EXPERIENCE_STATE_DELETED: _ClassVar[ExperienceState]
    EXPERIENCE_STATE_AWAITING: _ClassVar[ExperienceState]
EXPERIENCE_STATE_UNSPECIFIED: ExperienceState
EXPERIENCE_STATE_RAW: ExperienceState
EXPERIENCE_STATE_DERIVED: ExperienceState
EXPERIENCE_STATE_READY: ExperienceState
EXPERIENCE_STATE_BATCHED: ExperienceState
EXPERIENCE_STATE_FILTERED: ExperienceState
EXPERIENCE_STATE_EVAL: ExperienceState
EXPERIENCE_STATE_SUPERSEDED: ExperienceState
EXPERIENCE_STATE_LATE: ExperienceState
EXPERIENCE_STATE_EXCLUDED: ExperienceState
EXPERIENCE_STATE_DELETED: ExperienceState
EXPERIENCE_STATE_AWAITING: ExperienceState

class ListStagesRequest(_message.Message):
    __slots__ = ("tenant", "experiment_id")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    EXPERIMENT_ID_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    experiment_id: str
    def __init__(self, tenant: _Optional[str] = ..., experiment_id: _Optional[str] = ...) -> None: ...

class ListStagesResponse(_message.Message):
    __slots__ = ("stages", "num_stages_left_out")
    STAGES_FIELD_NUMBER: _ClassVar[int]
    NUM_STAGES_LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    stages: _containers.RepeatedCompositeFieldContainer[StoredStage]
    num_stages_left_out: int
    def __init__(self, stages: _Optional[_Iterable[_Union[StoredStage, _Mapping]]] = ..., num_stages_left_out: _Optional[int] = ...) -> None: ...

class StoredStage(_message.Message):
    __slots__ = ("key", "state", "trained_step", "recorded_step", "counts", "num_counts_left_out")
    KEY_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    TRAINED_STEP_FIELD_NUMBER: _ClassVar[int]
    RECORDED_STEP_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    NUM_COUNTS_LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    key: _buffer_pb2.StageKey
    state: str
    trained_step: int
    recorded_step: int
    counts: _containers.RepeatedCompositeFieldContainer[StateCount]
    num_counts_left_out: int
    def __init__(self, key: _Optional[_Union[_buffer_pb2.StageKey, _Mapping]] = ..., state: _Optional[str] = ..., trained_step: _Optional[int] = ..., recorded_step: _Optional[int] = ..., counts: _Optional[_Iterable[_Union[StateCount, _Mapping]]] = ..., num_counts_left_out: _Optional[int] = ...) -> None: ...

class StateCount(_message.Message):
    __slots__ = ("state", "reason", "count")
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    state: ExperienceState
    reason: str
    count: int
    def __init__(self, state: _Optional[_Union[ExperienceState, str]] = ..., reason: _Optional[str] = ..., count: _Optional[int] = ...) -> None: ...

class ExperienceFilter(_message.Message):
    __slots__ = ("kind", "states", "reward_min", "reward_max", "version_min", "version_max", "taskset", "task_index", "explore_step", "train_step", "text", "experience_ids", "finish_reason", "train_step_last")
    KIND_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    REWARD_MIN_FIELD_NUMBER: _ClassVar[int]
    REWARD_MAX_FIELD_NUMBER: _ClassVar[int]
    VERSION_MIN_FIELD_NUMBER: _ClassVar[int]
    VERSION_MAX_FIELD_NUMBER: _ClassVar[int]
    TASKSET_FIELD_NUMBER: _ClassVar[int]
    TASK_INDEX_FIELD_NUMBER: _ClassVar[int]
    EXPLORE_STEP_FIELD_NUMBER: _ClassVar[int]
    TRAIN_STEP_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    EXPERIENCE_IDS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    TRAIN_STEP_LAST_FIELD_NUMBER: _ClassVar[int]
    kind: _buffer_pb2.AssignmentKind
    states: _containers.RepeatedScalarFieldContainer[ExperienceState]
    reward_min: float
    reward_max: float
    version_min: int
    version_max: int
    taskset: str
    task_index: int
    explore_step: int
    train_step: int
    text: str
    experience_ids: _containers.RepeatedScalarFieldContainer[str]
    finish_reason: _experience_pb2.FinishReason
    train_step_last: int
    def __init__(self, kind: _Optional[_Union[_buffer_pb2.AssignmentKind, str]] = ..., states: _Optional[_Iterable[_Union[ExperienceState, str]]] = ..., reward_min: _Optional[float] = ..., reward_max: _Optional[float] = ..., version_min: _Optional[int] = ..., version_max: _Optional[int] = ..., taskset: _Optional[str] = ..., task_index: _Optional[int] = ..., explore_step: _Optional[int] = ..., train_step: _Optional[int] = ..., text: _Optional[str] = ..., experience_ids: _Optional[_Iterable[str]] = ..., finish_reason: _Optional[_Union[_experience_pb2.FinishReason, str]] = ..., train_step_last: _Optional[int] = ...) -> None: ...

class ExperienceRecord(_message.Message):
    __slots__ = ("id", "parent_id", "eid", "assignment_id", "taskset", "task_index", "state", "reason", "reward", "advantage", "version_min", "version_max", "num_tokens", "response_length", "finish_reason", "revision", "metrics", "unix_millis", "uses", "content", "content_removed", "shaped_reward", "turn_sha256")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    PARENT_ID_FIELD_NUMBER: _ClassVar[int]
    EID_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENT_ID_FIELD_NUMBER: _ClassVar[int]
    TASKSET_FIELD_NUMBER: _ClassVar[int]
    TASK_INDEX_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    REWARD_FIELD_NUMBER: _ClassVar[int]
    ADVANTAGE_FIELD_NUMBER: _ClassVar[int]
    VERSION_MIN_FIELD_NUMBER: _ClassVar[int]
    VERSION_MAX_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_LENGTH_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    UNIX_MILLIS_FIELD_NUMBER: _ClassVar[int]
    USES_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    CONTENT_REMOVED_FIELD_NUMBER: _ClassVar[int]
    SHAPED_REWARD_FIELD_NUMBER: _ClassVar[int]
    TURN_SHA256_FIELD_NUMBER: _ClassVar[int]
    id: str
    parent_id: str
    eid: _experience_pb2.Eid
    assignment_id: str
    taskset: str
    task_index: int
    state: ExperienceState
    reason: str
    reward: float
    advantage: float
    version_min: int
    version_max: int
    num_tokens: int
    response_length: int
    finish_reason: _experience_pb2.FinishReason
    revision: int
    metrics: _containers.ScalarMap[str, float]
    unix_millis: int
    uses: _containers.RepeatedCompositeFieldContainer[BatchUse]
    content: _experience_pb2.Experience
    content_removed: str
    shaped_reward: float
    turn_sha256: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, id: _Optional[str] = ..., parent_id: _Optional[str] = ..., eid: _Optional[_Union[_experience_pb2.Eid, _Mapping]] = ..., assignment_id: _Optional[str] = ..., taskset: _Optional[str] = ..., task_index: _Optional[int] = ..., state: _Optional[_Union[ExperienceState, str]] = ..., reason: _Optional[str] = ..., reward: _Optional[float] = ..., advantage: _Optional[float] = ..., version_min: _Optional[int] = ..., version_max: _Optional[int] = ..., num_tokens: _Optional[int] = ..., response_length: _Optional[int] = ..., finish_reason: _Optional[_Union[_experience_pb2.FinishReason, str]] = ..., revision: _Optional[int] = ..., metrics: _Optional[_Mapping[str, float]] = ..., unix_millis: _Optional[int] = ..., uses: _Optional[_Iterable[_Union[BatchUse, _Mapping]]] = ..., content: _Optional[_Union[_experience_pb2.Experience, _Mapping]] = ..., content_removed: _Optional[str] = ..., shaped_reward: _Optional[float] = ..., turn_sha256: _Optional[_Iterable[bytes]] = ...) -> None: ...

class BatchUse(_message.Message):
    __slots__ = ("line", "step", "position", "advantage", "weight", "mean_ratio", "trained_advantage", "tokens", "row_sha256")
    LINE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    ADVANTAGE_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    MEAN_RATIO_FIELD_NUMBER: _ClassVar[int]
    TRAINED_ADVANTAGE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    ROW_SHA256_FIELD_NUMBER: _ClassVar[int]
    line: int
    step: int
    position: int
    advantage: float
    weight: float
    mean_ratio: float
    trained_advantage: float
    tokens: _buffer_pb2.TokenValues
    row_sha256: bytes
    def __init__(self, line: _Optional[int] = ..., step: _Optional[int] = ..., position: _Optional[int] = ..., advantage: _Optional[float] = ..., weight: _Optional[float] = ..., mean_ratio: _Optional[float] = ..., trained_advantage: _Optional[float] = ..., tokens: _Optional[_Union[_buffer_pb2.TokenValues, _Mapping]] = ..., row_sha256: _Optional[bytes] = ...) -> None: ...

class ListExperiencesRequest(_message.Message):
    __slots__ = ("key", "filter", "limit", "latest_first", "with_content", "cursor")
    KEY_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    LATEST_FIRST_FIELD_NUMBER: _ClassVar[int]
    WITH_CONTENT_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    key: _buffer_pb2.StageKey
    filter: ExperienceFilter
    limit: int
    latest_first: bool
    with_content: bool
    cursor: str
    def __init__(self, key: _Optional[_Union[_buffer_pb2.StageKey, _Mapping]] = ..., filter: _Optional[_Union[ExperienceFilter, _Mapping]] = ..., limit: _Optional[int] = ..., latest_first: _Optional[bool] = ..., with_content: _Optional[bool] = ..., cursor: _Optional[str] = ...) -> None: ...

class ListExperiencesResponse(_message.Message):
    __slots__ = ("experiences", "cursor", "num_examined")
    EXPERIENCES_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    NUM_EXAMINED_FIELD_NUMBER: _ClassVar[int]
    experiences: _containers.RepeatedCompositeFieldContainer[ExperienceRecord]
    cursor: str
    num_examined: int
    def __init__(self, experiences: _Optional[_Iterable[_Union[ExperienceRecord, _Mapping]]] = ..., cursor: _Optional[str] = ..., num_examined: _Optional[int] = ...) -> None: ...

class GetExperienceRequest(_message.Message):
    __slots__ = ("key", "experience_id")
    KEY_FIELD_NUMBER: _ClassVar[int]
    EXPERIENCE_ID_FIELD_NUMBER: _ClassVar[int]
    key: _buffer_pb2.StageKey
    experience_id: str
    def __init__(self, key: _Optional[_Union[_buffer_pb2.StageKey, _Mapping]] = ..., experience_id: _Optional[str] = ...) -> None: ...

class GetExperienceResponse(_message.Message):
    __slots__ = ("experience", "run_seconds", "run_metrics", "changes")
    class RunMetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    EXPERIENCE_FIELD_NUMBER: _ClassVar[int]
    RUN_SECONDS_FIELD_NUMBER: _ClassVar[int]
    RUN_METRICS_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    experience: ExperienceRecord
    run_seconds: float
    run_metrics: _containers.ScalarMap[str, float]
    changes: _containers.RepeatedCompositeFieldContainer[SampleChange]
    def __init__(self, experience: _Optional[_Union[ExperienceRecord, _Mapping]] = ..., run_seconds: _Optional[float] = ..., run_metrics: _Optional[_Mapping[str, float]] = ..., changes: _Optional[_Iterable[_Union[SampleChange, _Mapping]]] = ...) -> None: ...

class GetSessionRequest(_message.Message):
    __slots__ = ("key", "assignment_id", "run")
    KEY_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENT_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    key: _buffer_pb2.StageKey
    assignment_id: str
    run: int
    def __init__(self, key: _Optional[_Union[_buffer_pb2.StageKey, _Mapping]] = ..., assignment_id: _Optional[str] = ..., run: _Optional[int] = ...) -> None: ...

class GetSessionResponse(_message.Message):
    __slots__ = ("turns",)
    TURNS_FIELD_NUMBER: _ClassVar[int]
    turns: _containers.RepeatedCompositeFieldContainer[_experience_pb2.SessionTurn]
    def __init__(self, turns: _Optional[_Iterable[_Union[_experience_pb2.SessionTurn, _Mapping]]] = ...) -> None: ...

class SampleChange(_message.Message):
    __slots__ = ("what", "reason", "by", "unix_millis")
    WHAT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    UNIX_MILLIS_FIELD_NUMBER: _ClassVar[int]
    what: str
    reason: str
    by: str
    unix_millis: int
    def __init__(self, what: _Optional[str] = ..., reason: _Optional[str] = ..., by: _Optional[str] = ..., unix_millis: _Optional[int] = ...) -> None: ...

class GetStepRequest(_message.Message):
    __slots__ = ("key", "step")
    KEY_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    key: _buffer_pb2.StageKey
    step: int
    def __init__(self, key: _Optional[_Union[_buffer_pb2.StageKey, _Mapping]] = ..., step: _Optional[int] = ...) -> None: ...

class GetStepResponse(_message.Message):
    __slots__ = ("head", "rows")
    HEAD_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    head: StepHead
    rows: StepRows
    def __init__(self, head: _Optional[_Union[StepHead, _Mapping]] = ..., rows: _Optional[_Union[StepRows, _Mapping]] = ...) -> None: ...

class StepHead(_message.Message):
    __slots__ = ("step", "line", "incarnation", "num_rows", "batch_metrics", "trained", "weights_before", "weights_after", "rows_from", "rows_from_run", "num_trained_left_out", "changes", "rows_sha256", "lineage_sha256", "before_sha256")
    class BatchMetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    STEP_FIELD_NUMBER: _ClassVar[int]
    LINE_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    NUM_ROWS_FIELD_NUMBER: _ClassVar[int]
    BATCH_METRICS_FIELD_NUMBER: _ClassVar[int]
    TRAINED_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_BEFORE_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_AFTER_FIELD_NUMBER: _ClassVar[int]
    ROWS_FROM_FIELD_NUMBER: _ClassVar[int]
    ROWS_FROM_RUN_FIELD_NUMBER: _ClassVar[int]
    NUM_TRAINED_LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    ROWS_SHA256_FIELD_NUMBER: _ClassVar[int]
    LINEAGE_SHA256_FIELD_NUMBER: _ClassVar[int]
    BEFORE_SHA256_FIELD_NUMBER: _ClassVar[int]
    step: int
    line: int
    incarnation: int
    num_rows: int
    batch_metrics: _containers.ScalarMap[str, float]
    trained: _containers.RepeatedCompositeFieldContainer[_buffer_pb2.StepTrained]
    weights_before: _buffer_pb2.PublishedVersion
    weights_after: _buffer_pb2.PublishedVersion
    rows_from: _buffer_pb2.StageKey
    rows_from_run: str
    num_trained_left_out: int
    changes: _containers.RepeatedCompositeFieldContainer[_buffer_pb2.SettingChange]
    rows_sha256: bytes
    lineage_sha256: bytes
    before_sha256: bytes
    def __init__(self, step: _Optional[int] = ..., line: _Optional[int] = ..., incarnation: _Optional[int] = ..., num_rows: _Optional[int] = ..., batch_metrics: _Optional[_Mapping[str, float]] = ..., trained: _Optional[_Iterable[_Union[_buffer_pb2.StepTrained, _Mapping]]] = ..., weights_before: _Optional[_Union[_buffer_pb2.PublishedVersion, _Mapping]] = ..., weights_after: _Optional[_Union[_buffer_pb2.PublishedVersion, _Mapping]] = ..., rows_from: _Optional[_Union[_buffer_pb2.StageKey, _Mapping]] = ..., rows_from_run: _Optional[str] = ..., num_trained_left_out: _Optional[int] = ..., changes: _Optional[_Iterable[_Union[_buffer_pb2.SettingChange, _Mapping]]] = ..., rows_sha256: _Optional[bytes] = ..., lineage_sha256: _Optional[bytes] = ..., before_sha256: _Optional[bytes] = ...) -> None: ...

class StepRows(_message.Message):
    __slots__ = ("rows",)
    ROWS_FIELD_NUMBER: _ClassVar[int]
    rows: _containers.RepeatedCompositeFieldContainer[StepRow]
    def __init__(self, rows: _Optional[_Iterable[_Union[StepRow, _Mapping]]] = ...) -> None: ...

class StepRow(_message.Message):
    __slots__ = ("use", "experience", "row_json", "row_index")
    USE_FIELD_NUMBER: _ClassVar[int]
    EXPERIENCE_FIELD_NUMBER: _ClassVar[int]
    ROW_JSON_FIELD_NUMBER: _ClassVar[int]
    ROW_INDEX_FIELD_NUMBER: _ClassVar[int]
    use: BatchUse
    experience: ExperienceRecord
    row_json: str
    row_index: int
    def __init__(self, use: _Optional[_Union[BatchUse, _Mapping]] = ..., experience: _Optional[_Union[ExperienceRecord, _Mapping]] = ..., row_json: _Optional[str] = ..., row_index: _Optional[int] = ...) -> None: ...

class GetPopulationRequest(_message.Message):
    __slots__ = ("key",)
    KEY_FIELD_NUMBER: _ClassVar[int]
    key: _buffer_pb2.StageKey
    def __init__(self, key: _Optional[_Union[_buffer_pb2.StageKey, _Mapping]] = ...) -> None: ...

class GetPopulationResponse(_message.Message):
    __slots__ = ("first_explore_step", "last_explore_step", "num_runs", "num_generated", "num_trained", "comparisons", "left_out")
    FIRST_EXPLORE_STEP_FIELD_NUMBER: _ClassVar[int]
    LAST_EXPLORE_STEP_FIELD_NUMBER: _ClassVar[int]
    NUM_RUNS_FIELD_NUMBER: _ClassVar[int]
    NUM_GENERATED_FIELD_NUMBER: _ClassVar[int]
    NUM_TRAINED_FIELD_NUMBER: _ClassVar[int]
    COMPARISONS_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    first_explore_step: int
    last_explore_step: int
    num_runs: int
    num_generated: int
    num_trained: int
    comparisons: _containers.RepeatedCompositeFieldContainer[Comparison]
    left_out: _containers.RepeatedCompositeFieldContainer[StateCount]
    def __init__(self, first_explore_step: _Optional[int] = ..., last_explore_step: _Optional[int] = ..., num_runs: _Optional[int] = ..., num_generated: _Optional[int] = ..., num_trained: _Optional[int] = ..., comparisons: _Optional[_Iterable[_Union[Comparison, _Mapping]]] = ..., left_out: _Optional[_Iterable[_Union[StateCount, _Mapping]]] = ...) -> None: ...

class Comparison(_message.Message):
    __slots__ = ("name", "generated_mean", "trained_mean", "shift", "is_significant")
    NAME_FIELD_NUMBER: _ClassVar[int]
    GENERATED_MEAN_FIELD_NUMBER: _ClassVar[int]
    TRAINED_MEAN_FIELD_NUMBER: _ClassVar[int]
    SHIFT_FIELD_NUMBER: _ClassVar[int]
    IS_SIGNIFICANT_FIELD_NUMBER: _ClassVar[int]
    name: str
    generated_mean: float
    trained_mean: float
    shift: float
    is_significant: bool
    def __init__(self, name: _Optional[str] = ..., generated_mean: _Optional[float] = ..., trained_mean: _Optional[float] = ..., shift: _Optional[float] = ..., is_significant: _Optional[bool] = ...) -> None: ...

class ListTaskScoresRequest(_message.Message):
    __slots__ = ("key", "kind", "taskset", "versions", "metric", "pass_score", "max_draws")
    KEY_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    TASKSET_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    METRIC_FIELD_NUMBER: _ClassVar[int]
    PASS_SCORE_FIELD_NUMBER: _ClassVar[int]
    MAX_DRAWS_FIELD_NUMBER: _ClassVar[int]
    key: _buffer_pb2.StageKey
    kind: _buffer_pb2.AssignmentKind
    taskset: str
    versions: _containers.RepeatedScalarFieldContainer[int]
    metric: str
    pass_score: float
    max_draws: int
    def __init__(self, key: _Optional[_Union[_buffer_pb2.StageKey, _Mapping]] = ..., kind: _Optional[_Union[_buffer_pb2.AssignmentKind, str]] = ..., taskset: _Optional[str] = ..., versions: _Optional[_Iterable[int]] = ..., metric: _Optional[str] = ..., pass_score: _Optional[float] = ..., max_draws: _Optional[int] = ...) -> None: ...

class ListTaskScoresResponse(_message.Message):
    __slots__ = ("head", "page")
    HEAD_FIELD_NUMBER: _ClassVar[int]
    PAGE_FIELD_NUMBER: _ClassVar[int]
    head: TaskScoresHead
    page: TaskScoresPage
    def __init__(self, head: _Optional[_Union[TaskScoresHead, _Mapping]] = ..., page: _Optional[_Union[TaskScoresPage, _Mapping]] = ...) -> None: ...

class TaskScoresHead(_message.Message):
    __slots__ = ("num_draws", "num_draws_read")
    NUM_DRAWS_FIELD_NUMBER: _ClassVar[int]
    NUM_DRAWS_READ_FIELD_NUMBER: _ClassVar[int]
    num_draws: int
    num_draws_read: int
    def __init__(self, num_draws: _Optional[int] = ..., num_draws_read: _Optional[int] = ...) -> None: ...

class TaskScoresPage(_message.Message):
    __slots__ = ("tasks",)
    TASKS_FIELD_NUMBER: _ClassVar[int]
    tasks: _containers.RepeatedCompositeFieldContainer[TaskScores]
    def __init__(self, tasks: _Optional[_Iterable[_Union[TaskScores, _Mapping]]] = ...) -> None: ...

class TaskScores(_message.Message):
    __slots__ = ("taskset", "task_index", "num_draws", "versions")
    TASKSET_FIELD_NUMBER: _ClassVar[int]
    TASK_INDEX_FIELD_NUMBER: _ClassVar[int]
    NUM_DRAWS_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    taskset: str
    task_index: int
    num_draws: int
    versions: _containers.RepeatedCompositeFieldContainer[VersionScore]
    def __init__(self, taskset: _Optional[str] = ..., task_index: _Optional[int] = ..., num_draws: _Optional[int] = ..., versions: _Optional[_Iterable[_Union[VersionScore, _Mapping]]] = ...) -> None: ...

class VersionScore(_message.Message):
    __slots__ = ("version", "num_runs", "num_scored", "num_passed", "mean")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    NUM_RUNS_FIELD_NUMBER: _ClassVar[int]
    NUM_SCORED_FIELD_NUMBER: _ClassVar[int]
    NUM_PASSED_FIELD_NUMBER: _ClassVar[int]
    MEAN_FIELD_NUMBER: _ClassVar[int]
    version: int
    num_runs: int
    num_scored: int
    num_passed: int
    mean: float
    def __init__(self, version: _Optional[int] = ..., num_runs: _Optional[int] = ..., num_scored: _Optional[int] = ..., num_passed: _Optional[int] = ..., mean: _Optional[float] = ...) -> None: ...

class ExcludeExperiencesRequest(_message.Message):
    __slots__ = ("key", "filter", "reason", "dry_run")
    KEY_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    key: _buffer_pb2.StageKey
    filter: ExperienceFilter
    reason: str
    dry_run: bool
    def __init__(self, key: _Optional[_Union[_buffer_pb2.StageKey, _Mapping]] = ..., filter: _Optional[_Union[ExperienceFilter, _Mapping]] = ..., reason: _Optional[str] = ..., dry_run: _Optional[bool] = ...) -> None: ...

class ExcludeExperiencesResponse(_message.Message):
    __slots__ = ("num_excluded", "num_batched")
    NUM_EXCLUDED_FIELD_NUMBER: _ClassVar[int]
    NUM_BATCHED_FIELD_NUMBER: _ClassVar[int]
    num_excluded: int
    num_batched: int
    def __init__(self, num_excluded: _Optional[int] = ..., num_batched: _Optional[int] = ...) -> None: ...

class IncludeExperiencesRequest(_message.Message):
    __slots__ = ("key", "filter", "dry_run", "reason")
    KEY_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    key: _buffer_pb2.StageKey
    filter: ExperienceFilter
    dry_run: bool
    reason: str
    def __init__(self, key: _Optional[_Union[_buffer_pb2.StageKey, _Mapping]] = ..., filter: _Optional[_Union[ExperienceFilter, _Mapping]] = ..., dry_run: _Optional[bool] = ..., reason: _Optional[str] = ...) -> None: ...

class IncludeExperiencesResponse(_message.Message):
    __slots__ = ("num_included", "num_too_late")
    NUM_INCLUDED_FIELD_NUMBER: _ClassVar[int]
    NUM_TOO_LATE_FIELD_NUMBER: _ClassVar[int]
    num_included: int
    num_too_late: int
    def __init__(self, num_included: _Optional[int] = ..., num_too_late: _Optional[int] = ...) -> None: ...

class DeleteExperiencesRequest(_message.Message):
    __slots__ = ("key", "filter", "reason", "dry_run")
    KEY_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    key: _buffer_pb2.StageKey
    filter: ExperienceFilter
    reason: str
    dry_run: bool
    def __init__(self, key: _Optional[_Union[_buffer_pb2.StageKey, _Mapping]] = ..., filter: _Optional[_Union[ExperienceFilter, _Mapping]] = ..., reason: _Optional[str] = ..., dry_run: _Optional[bool] = ...) -> None: ...

class DeleteExperiencesResponse(_message.Message):
    __slots__ = ("num_deleted", "num_bytes")
    NUM_DELETED_FIELD_NUMBER: _ClassVar[int]
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    num_deleted: int
    num_bytes: int
    def __init__(self, num_deleted: _Optional[int] = ..., num_bytes: _Optional[int] = ...) -> None: ...

class Feedback(_message.Message):
    __slots__ = ("experience_id", "reward", "reward_parts")
    class RewardPartsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    EXPERIENCE_ID_FIELD_NUMBER: _ClassVar[int]
    REWARD_FIELD_NUMBER: _ClassVar[int]
    REWARD_PARTS_FIELD_NUMBER: _ClassVar[int]
    experience_id: str
    reward: float
    reward_parts: _containers.ScalarMap[str, float]
    def __init__(self, experience_id: _Optional[str] = ..., reward: _Optional[float] = ..., reward_parts: _Optional[_Mapping[str, float]] = ...) -> None: ...

class GiveFeedbackRequest(_message.Message):
    __slots__ = ("key", "feedback", "reason")
    KEY_FIELD_NUMBER: _ClassVar[int]
    FEEDBACK_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    key: _buffer_pb2.StageKey
    feedback: _containers.RepeatedCompositeFieldContainer[Feedback]
    reason: str
    def __init__(self, key: _Optional[_Union[_buffer_pb2.StageKey, _Mapping]] = ..., feedback: _Optional[_Iterable[_Union[Feedback, _Mapping]]] = ..., reason: _Optional[str] = ...) -> None: ...

class GiveFeedbackResponse(_message.Message):
    __slots__ = ("num_set", "num_known", "refused")
    NUM_SET_FIELD_NUMBER: _ClassVar[int]
    NUM_KNOWN_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    num_set: int
    num_known: int
    refused: _containers.RepeatedCompositeFieldContainer[RefusedFeedback]
    def __init__(self, num_set: _Optional[int] = ..., num_known: _Optional[int] = ..., refused: _Optional[_Iterable[_Union[RefusedFeedback, _Mapping]]] = ...) -> None: ...

class RefusedFeedback(_message.Message):
    __slots__ = ("experience_id", "reason")
    EXPERIENCE_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    experience_id: str
    reason: str
    def __init__(self, experience_id: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...
