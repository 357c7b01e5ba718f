from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ListTasksetsRequest(_message.Message):
    __slots__ = ("tenant", "page_size", "page_token")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    page_size: int
    page_token: str
    def __init__(self, tenant: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListTasksetsResponse(_message.Message):
    __slots__ = ("tasksets", "next_page_token")
    TASKSETS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    tasksets: _containers.RepeatedCompositeFieldContainer[Taskset]
    next_page_token: str
    def __init__(self, tasksets: _Optional[_Iterable[_Union[Taskset, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class Taskset(_message.Message):
    __slots__ = ("id", "name", "source", "state", "num_rows", "num_refused", "created_millis", "num_stages", "is_queue", "pipeline")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STATE_UNSPECIFIED: _ClassVar[Taskset.State]
        STATE_INCOMPLETE: _ClassVar[Taskset.State]
        STATE_COMPLETE: _ClassVar[Taskset.State]
        STATE_OPEN: _ClassVar[Taskset.State]
    STATE_UNSPECIFIED: Taskset.State
    STATE_INCOMPLETE: Taskset.State
    STATE_COMPLETE: Taskset.State
    STATE_OPEN: Taskset.State
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    NUM_ROWS_FIELD_NUMBER: _ClassVar[int]
    NUM_REFUSED_FIELD_NUMBER: _ClassVar[int]
    CREATED_MILLIS_FIELD_NUMBER: _ClassVar[int]
    NUM_STAGES_FIELD_NUMBER: _ClassVar[int]
    IS_QUEUE_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    id: str
    name: str
    source: str
    state: Taskset.State
    num_rows: int
    num_refused: int
    created_millis: int
    num_stages: int
    is_queue: bool
    pipeline: TaskPipelineCounts
    def __init__(self, id: _Optional[str] = ..., name: _Optional[str] = ..., source: _Optional[str] = ..., state: _Optional[_Union[Taskset.State, str]] = ..., num_rows: _Optional[int] = ..., num_refused: _Optional[int] = ..., created_millis: _Optional[int] = ..., num_stages: _Optional[int] = ..., is_queue: _Optional[bool] = ..., pipeline: _Optional[_Union[TaskPipelineCounts, _Mapping]] = ...) -> None: ...

class TaskPipelineCounts(_message.Message):
    __slots__ = ("num_read", "left_out", "ordered_by", "num_reasons_left_out")
    class OrderedByEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    NUM_READ_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    ORDERED_BY_FIELD_NUMBER: _ClassVar[int]
    NUM_REASONS_LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    num_read: int
    left_out: _containers.RepeatedCompositeFieldContainer[TasksLeftOut]
    ordered_by: _containers.ScalarMap[str, float]
    num_reasons_left_out: int
    def __init__(self, num_read: _Optional[int] = ..., left_out: _Optional[_Iterable[_Union[TasksLeftOut, _Mapping]]] = ..., ordered_by: _Optional[_Mapping[str, float]] = ..., num_reasons_left_out: _Optional[int] = ...) -> None: ...

class TasksLeftOut(_message.Message):
    __slots__ = ("reason", "num_rows")
    REASON_FIELD_NUMBER: _ClassVar[int]
    NUM_ROWS_FIELD_NUMBER: _ClassVar[int]
    reason: str
    num_rows: int
    def __init__(self, reason: _Optional[str] = ..., num_rows: _Optional[int] = ...) -> None: ...

class GetTasksetRequest(_message.Message):
    __slots__ = ("tenant", "taskset", "first_row", "num_rows")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    TASKSET_FIELD_NUMBER: _ClassVar[int]
    FIRST_ROW_FIELD_NUMBER: _ClassVar[int]
    NUM_ROWS_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    taskset: str
    first_row: int
    num_rows: int
    def __init__(self, tenant: _Optional[str] = ..., taskset: _Optional[str] = ..., first_row: _Optional[int] = ..., num_rows: _Optional[int] = ...) -> None: ...

class GetTasksetResponse(_message.Message):
    __slots__ = ("taskset", "rows", "source_rows")
    TASKSET_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    SOURCE_ROWS_FIELD_NUMBER: _ClassVar[int]
    taskset: Taskset
    rows: _containers.RepeatedScalarFieldContainer[str]
    source_rows: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, taskset: _Optional[_Union[Taskset, _Mapping]] = ..., rows: _Optional[_Iterable[str]] = ..., source_rows: _Optional[_Iterable[int]] = ...) -> None: ...

class DeleteTasksetRequest(_message.Message):
    __slots__ = ("tenant", "taskset")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    TASKSET_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    taskset: str
    def __init__(self, tenant: _Optional[str] = ..., taskset: _Optional[str] = ...) -> None: ...

class DeleteTasksetResponse(_message.Message):
    __slots__ = ("num_rows",)
    NUM_ROWS_FIELD_NUMBER: _ClassVar[int]
    num_rows: int
    def __init__(self, num_rows: _Optional[int] = ...) -> None: ...

class CloseQueueRequest(_message.Message):
    __slots__ = ("tenant", "taskset")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    TASKSET_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    taskset: str
    def __init__(self, tenant: _Optional[str] = ..., taskset: _Optional[str] = ...) -> None: ...

class CloseQueueResponse(_message.Message):
    __slots__ = ("num_rows",)
    NUM_ROWS_FIELD_NUMBER: _ClassVar[int]
    num_rows: int
    def __init__(self, num_rows: _Optional[int] = ...) -> None: ...
