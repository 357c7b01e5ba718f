from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetExplorerStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetExplorerStatusResponse(_message.Message):
    __slots__ = ("explorer_id", "experiment_id", "stage", "activity", "loaded_version", "num_running", "num_unconfirmed", "num_generated_tokens")
    EXPLORER_ID_FIELD_NUMBER: _ClassVar[int]
    EXPERIMENT_ID_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    ACTIVITY_FIELD_NUMBER: _ClassVar[int]
    LOADED_VERSION_FIELD_NUMBER: _ClassVar[int]
    NUM_RUNNING_FIELD_NUMBER: _ClassVar[int]
    NUM_UNCONFIRMED_FIELD_NUMBER: _ClassVar[int]
    NUM_GENERATED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    explorer_id: str
    experiment_id: str
    stage: str
    activity: str
    loaded_version: int
    num_running: int
    num_unconfirmed: int
    num_generated_tokens: int
    def __init__(self, explorer_id: _Optional[str] = ..., experiment_id: _Optional[str] = ..., stage: _Optional[str] = ..., activity: _Optional[str] = ..., loaded_version: _Optional[int] = ..., num_running: _Optional[int] = ..., num_unconfirmed: _Optional[int] = ..., num_generated_tokens: _Optional[int] = ...) -> None: ...

class JoinEngineRequest(_message.Message):
    __slots__ = ("hello", "ended")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    hello: EngineHostHello
    ended: WorkersEnded
    def __init__(self, hello: _Optional[_Union[EngineHostHello, _Mapping]] = ..., ended: _Optional[_Union[WorkersEnded, _Mapping]] = ...) -> None: ...

class EngineHostHello(_message.Message):
    __slots__ = ("host", "num_hosts", "release", "address", "tenant")
    HOST_FIELD_NUMBER: _ClassVar[int]
    NUM_HOSTS_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    host: int
    num_hosts: int
    release: str
    address: str
    tenant: str
    def __init__(self, host: _Optional[int] = ..., num_hosts: _Optional[int] = ..., release: _Optional[str] = ..., address: _Optional[str] = ..., tenant: _Optional[str] = ...) -> None: ...

class WorkersEnded(_message.Message):
    __slots__ = ("start", "reason")
    START_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    start: int
    reason: str
    def __init__(self, start: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class JoinEngineResponse(_message.Message):
    __slots__ = ("start", "kill")
    START_FIELD_NUMBER: _ClassVar[int]
    KILL_FIELD_NUMBER: _ClassVar[int]
    start: WorkersStart
    kill: bool
    def __init__(self, start: _Optional[_Union[WorkersStart, _Mapping]] = ..., kill: _Optional[bool] = ...) -> None: ...

class WorkersStart(_message.Message):
    __slots__ = ("start", "arguments_json")
    START_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_JSON_FIELD_NUMBER: _ClassVar[int]
    start: int
    arguments_json: str
    def __init__(self, start: _Optional[int] = ..., arguments_json: _Optional[str] = ...) -> None: ...
