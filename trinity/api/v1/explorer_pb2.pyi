from trinity.api.v1 import hosts_pb2 as _hosts_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

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
