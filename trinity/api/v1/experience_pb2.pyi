from google.protobuf import struct_pb2 as _struct_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINISH_REASON_UNSPECIFIED: _ClassVar[FinishReason]
    FINISH_REASON_STOP: _ClassVar[FinishReason]
    FINISH_REASON_LENGTH: _ClassVar[FinishReason]
    FINISH_REASON_ABORT: _ClassVar[FinishReason]
    FINISH_REASON_PROMPT_TRUNCATED: _ClassVar[FinishReason]

class RewardState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REWARD_STATE_UNSPECIFIED: _ClassVar[RewardState]
    REWARD_STATE_FINAL: _ClassVar[RewardState]
    REWARD_STATE_AWAITING_FEEDBACK: _ClassVar[RewardState]
FINISH_REASON_UNSPECIFIED: FinishReason
FINISH_REASON_STOP: FinishReason
FINISH_REASON_LENGTH: FinishReason
FINISH_REASON_ABORT: FinishReason
FINISH_REASON_PROMPT_TRUNCATED: FinishReason
REWARD_STATE_UNSPECIFIED: RewardState
REWARD_STATE_FINAL: RewardState
REWARD_STATE_AWAITING_FEEDBACK: RewardState

class Tensor(_message.Message):
    __slots__ = ("dtype", "shape", "data", "alignment")
    class Dtype(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        DTYPE_UNSPECIFIED: _ClassVar[Tensor.Dtype]
        DTYPE_BOOL: _ClassVar[Tensor.Dtype]
        DTYPE_UINT8: _ClassVar[Tensor.Dtype]
        DTYPE_INT16: _ClassVar[Tensor.Dtype]
        DTYPE_INT32: _ClassVar[Tensor.Dtype]
        DTYPE_INT64: _ClassVar[Tensor.Dtype]
        DTYPE_FLOAT16: _ClassVar[Tensor.Dtype]
        DTYPE_BFLOAT16: _ClassVar[Tensor.Dtype]
        DTYPE_FLOAT32: _ClassVar[Tensor.Dtype]
        DTYPE_FLOAT64: _ClassVar[Tensor.Dtype]
    DTYPE_UNSPECIFIED: Tensor.Dtype
    DTYPE_BOOL: Tensor.Dtype
    DTYPE_UINT8: Tensor.Dtype
    DTYPE_INT16: Tensor.Dtype
    DTYPE_INT32: Tensor.Dtype
    DTYPE_INT64: Tensor.Dtype
    DTYPE_FLOAT16: Tensor.Dtype
    DTYPE_BFLOAT16: Tensor.Dtype
    DTYPE_FLOAT32: Tensor.Dtype
    DTYPE_FLOAT64: Tensor.Dtype
    class Alignment(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        ALIGNMENT_UNSPECIFIED: _ClassVar[Tensor.Alignment]
        ALIGNMENT_TOKEN: _ClassVar[Tensor.Alignment]
        ALIGNMENT_RESPONSE: _ClassVar[Tensor.Alignment]
        ALIGNMENT_SEQUENCE: _ClassVar[Tensor.Alignment]
        ALIGNMENT_SAMPLE: _ClassVar[Tensor.Alignment]
    ALIGNMENT_UNSPECIFIED: Tensor.Alignment
    ALIGNMENT_TOKEN: Tensor.Alignment
    ALIGNMENT_RESPONSE: Tensor.Alignment
    ALIGNMENT_SEQUENCE: Tensor.Alignment
    ALIGNMENT_SAMPLE: Tensor.Alignment
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    ALIGNMENT_FIELD_NUMBER: _ClassVar[int]
    dtype: Tensor.Dtype
    shape: _containers.RepeatedScalarFieldContainer[int]
    data: bytes
    alignment: Tensor.Alignment
    def __init__(self, dtype: _Optional[_Union[Tensor.Dtype, str]] = ..., shape: _Optional[_Iterable[int]] = ..., data: _Optional[bytes] = ..., alignment: _Optional[_Union[Tensor.Alignment, str]] = ...) -> None: ...

class Eid(_message.Message):
    __slots__ = ("stage", "explore_step", "position", "run", "attempt", "step", "suffix")
    STAGE_FIELD_NUMBER: _ClassVar[int]
    EXPLORE_STEP_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    SUFFIX_FIELD_NUMBER: _ClassVar[int]
    stage: str
    explore_step: int
    position: int
    run: int
    attempt: int
    step: int
    suffix: str
    def __init__(self, stage: _Optional[str] = ..., explore_step: _Optional[int] = ..., position: _Optional[int] = ..., run: _Optional[int] = ..., attempt: _Optional[int] = ..., step: _Optional[int] = ..., suffix: _Optional[str] = ...) -> None: ...

class VersionSpan(_message.Message):
    __slots__ = ("start", "end", "version", "incarnation")
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    start: int
    end: int
    version: int
    incarnation: int
    def __init__(self, start: _Optional[int] = ..., end: _Optional[int] = ..., version: _Optional[int] = ..., incarnation: _Optional[int] = ...) -> None: ...

class Turn(_message.Message):
    __slots__ = ("prompt_length", "end", "content_sha256")
    PROMPT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    CONTENT_SHA256_FIELD_NUMBER: _ClassVar[int]
    prompt_length: int
    end: int
    content_sha256: bytes
    def __init__(self, prompt_length: _Optional[int] = ..., end: _Optional[int] = ..., content_sha256: _Optional[bytes] = ...) -> None: ...

class SamplingParams(_message.Message):
    __slots__ = ("temperature", "top_p", "top_k", "max_tokens", "seed", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "stop", "logprobs", "json_schema")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    JSON_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_p: float
    top_k: int
    max_tokens: int
    seed: int
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    stop: _containers.RepeatedScalarFieldContainer[str]
    logprobs: int
    json_schema: str
    def __init__(self, temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ..., max_tokens: _Optional[int] = ..., seed: _Optional[int] = ..., min_p: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., stop: _Optional[_Iterable[str]] = ..., logprobs: _Optional[int] = ..., json_schema: _Optional[str] = ...) -> None: ...

class RoleSpan(_message.Message):
    __slots__ = ("role", "start", "end")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    role: str
    start: int
    end: int
    def __init__(self, role: _Optional[str] = ..., start: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class Sequence(_message.Message):
    __slots__ = ("tokens", "prompt_length", "action_mask", "rollout_logprobs", "prompt_text", "response_text", "role_spans")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    ACTION_MASK_FIELD_NUMBER: _ClassVar[int]
    ROLLOUT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TEXT_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_TEXT_FIELD_NUMBER: _ClassVar[int]
    ROLE_SPANS_FIELD_NUMBER: _ClassVar[int]
    tokens: Tensor
    prompt_length: int
    action_mask: Tensor
    rollout_logprobs: Tensor
    prompt_text: str
    response_text: str
    role_spans: _containers.RepeatedCompositeFieldContainer[RoleSpan]
    def __init__(self, tokens: _Optional[_Union[Tensor, _Mapping]] = ..., prompt_length: _Optional[int] = ..., action_mask: _Optional[_Union[Tensor, _Mapping]] = ..., rollout_logprobs: _Optional[_Union[Tensor, _Mapping]] = ..., prompt_text: _Optional[str] = ..., response_text: _Optional[str] = ..., role_spans: _Optional[_Iterable[_Union[RoleSpan, _Mapping]]] = ...) -> None: ...

class Pair(_message.Message):
    __slots__ = ("chosen", "rejected")
    CHOSEN_FIELD_NUMBER: _ClassVar[int]
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    chosen: Sequence
    rejected: Sequence
    def __init__(self, chosen: _Optional[_Union[Sequence, _Mapping]] = ..., rejected: _Optional[_Union[Sequence, _Mapping]] = ...) -> None: ...

class Blob(_message.Message):
    __slots__ = ("name", "sha256", "size", "media_type")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    MEDIA_TYPE_FIELD_NUMBER: _ClassVar[int]
    name: str
    sha256: bytes
    size: int
    media_type: str
    def __init__(self, name: _Optional[str] = ..., sha256: _Optional[bytes] = ..., size: _Optional[int] = ..., media_type: _Optional[str] = ...) -> None: ...

class Experience(_message.Message):
    __slots__ = ("id", "eid", "tenant", "experiment_id", "assignment_id", "taskset", "task_index", "sequence", "pair", "reward", "reward_parts", "finish_reason", "version_spans", "sampling", "chat_template_sha256", "tools_sha256", "arrays", "info", "metrics", "blobs", "reward_state", "reward_revision", "trace_id", "turns")
    class RewardPartsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class ArraysEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Tensor
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Tensor, _Mapping]] = ...) -> None: ...
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    EID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    EXPERIMENT_ID_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENT_ID_FIELD_NUMBER: _ClassVar[int]
    TASKSET_FIELD_NUMBER: _ClassVar[int]
    TASK_INDEX_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    PAIR_FIELD_NUMBER: _ClassVar[int]
    REWARD_FIELD_NUMBER: _ClassVar[int]
    REWARD_PARTS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    VERSION_SPANS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    CHAT_TEMPLATE_SHA256_FIELD_NUMBER: _ClassVar[int]
    TOOLS_SHA256_FIELD_NUMBER: _ClassVar[int]
    ARRAYS_FIELD_NUMBER: _ClassVar[int]
    INFO_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    BLOBS_FIELD_NUMBER: _ClassVar[int]
    REWARD_STATE_FIELD_NUMBER: _ClassVar[int]
    REWARD_REVISION_FIELD_NUMBER: _ClassVar[int]
    TRACE_ID_FIELD_NUMBER: _ClassVar[int]
    TURNS_FIELD_NUMBER: _ClassVar[int]
    id: str
    eid: Eid
    tenant: str
    experiment_id: str
    assignment_id: str
    taskset: str
    task_index: int
    sequence: Sequence
    pair: Pair
    reward: float
    reward_parts: _containers.ScalarMap[str, float]
    finish_reason: FinishReason
    version_spans: _containers.RepeatedCompositeFieldContainer[VersionSpan]
    sampling: SamplingParams
    chat_template_sha256: bytes
    tools_sha256: bytes
    arrays: _containers.MessageMap[str, Tensor]
    info: _struct_pb2.Struct
    metrics: _containers.ScalarMap[str, float]
    blobs: _containers.RepeatedCompositeFieldContainer[Blob]
    reward_state: RewardState
    reward_revision: int
    trace_id: str
    turns: _containers.RepeatedCompositeFieldContainer[Turn]
    def __init__(self, id: _Optional[str] = ..., eid: _Optional[_Union[Eid, _Mapping]] = ..., tenant: _Optional[str] = ..., experiment_id: _Optional[str] = ..., assignment_id: _Optional[str] = ..., taskset: _Optional[str] = ..., task_index: _Optional[int] = ..., sequence: _Optional[_Union[Sequence, _Mapping]] = ..., pair: _Optional[_Union[Pair, _Mapping]] = ..., reward: _Optional[float] = ..., reward_parts: _Optional[_Mapping[str, float]] = ..., finish_reason: _Optional[_Union[FinishReason, str]] = ..., version_spans: _Optional[_Iterable[_Union[VersionSpan, _Mapping]]] = ..., sampling: _Optional[_Union[SamplingParams, _Mapping]] = ..., chat_template_sha256: _Optional[bytes] = ..., tools_sha256: _Optional[bytes] = ..., arrays: _Optional[_Mapping[str, Tensor]] = ..., info: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., metrics: _Optional[_Mapping[str, float]] = ..., blobs: _Optional[_Iterable[_Union[Blob, _Mapping]]] = ..., reward_state: _Optional[_Union[RewardState, str]] = ..., reward_revision: _Optional[int] = ..., trace_id: _Optional[str] = ..., turns: _Optional[_Iterable[_Union[Turn, _Mapping]]] = ...) -> None: ...

class RunResult(_message.Message):
    __slots__ = ("tenant", "experiment_id", "stage", "assignment_id", "run", "attempt", "state", "reason", "experiences", "metrics", "duration_seconds", "sequence", "traceparent")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STATE_UNSPECIFIED: _ClassVar[RunResult.State]
        STATE_COMPLETE: _ClassVar[RunResult.State]
        STATE_FAILED: _ClassVar[RunResult.State]
    STATE_UNSPECIFIED: RunResult.State
    STATE_COMPLETE: RunResult.State
    STATE_FAILED: RunResult.State
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    TENANT_FIELD_NUMBER: _ClassVar[int]
    EXPERIMENT_ID_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENT_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    EXPERIENCES_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    DURATION_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    experiment_id: str
    stage: str
    assignment_id: str
    run: int
    attempt: int
    state: RunResult.State
    reason: str
    experiences: _containers.RepeatedCompositeFieldContainer[Experience]
    metrics: _containers.ScalarMap[str, float]
    duration_seconds: float
    sequence: int
    traceparent: str
    def __init__(self, tenant: _Optional[str] = ..., experiment_id: _Optional[str] = ..., stage: _Optional[str] = ..., assignment_id: _Optional[str] = ..., run: _Optional[int] = ..., attempt: _Optional[int] = ..., state: _Optional[_Union[RunResult.State, str]] = ..., reason: _Optional[str] = ..., experiences: _Optional[_Iterable[_Union[Experience, _Mapping]]] = ..., metrics: _Optional[_Mapping[str, float]] = ..., duration_seconds: _Optional[float] = ..., sequence: _Optional[int] = ..., traceparent: _Optional[str] = ...) -> None: ...

class RunResultBatch(_message.Message):
    __slots__ = ("producer", "results", "blob_sha256", "turns")
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    BLOB_SHA256_FIELD_NUMBER: _ClassVar[int]
    TURNS_FIELD_NUMBER: _ClassVar[int]
    producer: str
    results: _containers.RepeatedCompositeFieldContainer[RunResult]
    blob_sha256: bytes
    turns: _containers.RepeatedCompositeFieldContainer[SessionTurn]
    def __init__(self, producer: _Optional[str] = ..., results: _Optional[_Iterable[_Union[RunResult, _Mapping]]] = ..., blob_sha256: _Optional[bytes] = ..., turns: _Optional[_Iterable[_Union[SessionTurn, _Mapping]]] = ...) -> None: ...

class SessionTurn(_message.Message):
    __slots__ = ("tenant", "experiment_id", "stage", "assignment_id", "run", "lease_token", "id", "parent_id", "prompt_sha256", "ordinal", "payload", "sequence", "media_sha256", "session_id", "call_id", "is_rewarded")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    EXPERIMENT_ID_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENT_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    LEASE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    PARENT_ID_FIELD_NUMBER: _ClassVar[int]
    PROMPT_SHA256_FIELD_NUMBER: _ClassVar[int]
    ORDINAL_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    MEDIA_SHA256_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    IS_REWARDED_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    experiment_id: str
    stage: str
    assignment_id: str
    run: int
    lease_token: str
    id: str
    parent_id: str
    prompt_sha256: bytes
    ordinal: int
    payload: bytes
    sequence: int
    media_sha256: _containers.RepeatedScalarFieldContainer[bytes]
    session_id: str
    call_id: str
    is_rewarded: bool
    def __init__(self, tenant: _Optional[str] = ..., experiment_id: _Optional[str] = ..., stage: _Optional[str] = ..., assignment_id: _Optional[str] = ..., run: _Optional[int] = ..., lease_token: _Optional[str] = ..., id: _Optional[str] = ..., parent_id: _Optional[str] = ..., prompt_sha256: _Optional[bytes] = ..., ordinal: _Optional[int] = ..., payload: _Optional[bytes] = ..., sequence: _Optional[int] = ..., media_sha256: _Optional[_Iterable[bytes]] = ..., session_id: _Optional[str] = ..., call_id: _Optional[str] = ..., is_rewarded: _Optional[bool] = ...) -> None: ...

class TurnPayload(_message.Message):
    __slots__ = ("num_shared_tokens", "num_shared_characters", "answer", "num_shared_spans", "role_spans", "messages_json", "messages_sha256", "told_json")
    NUM_SHARED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_SHARED_CHARACTERS_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    NUM_SHARED_SPANS_FIELD_NUMBER: _ClassVar[int]
    ROLE_SPANS_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_JSON_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_SHA256_FIELD_NUMBER: _ClassVar[int]
    TOLD_JSON_FIELD_NUMBER: _ClassVar[int]
    num_shared_tokens: int
    num_shared_characters: int
    answer: Experience
    num_shared_spans: int
    role_spans: _containers.RepeatedCompositeFieldContainer[RoleSpan]
    messages_json: str
    messages_sha256: bytes
    told_json: str
    def __init__(self, num_shared_tokens: _Optional[int] = ..., num_shared_characters: _Optional[int] = ..., answer: _Optional[_Union[Experience, _Mapping]] = ..., num_shared_spans: _Optional[int] = ..., role_spans: _Optional[_Iterable[_Union[RoleSpan, _Mapping]]] = ..., messages_json: _Optional[str] = ..., messages_sha256: _Optional[bytes] = ..., told_json: _Optional[str] = ...) -> None: ...
