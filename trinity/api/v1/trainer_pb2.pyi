from trinity.api.v1 import hosts_pb2 as _hosts_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class GetTrainerStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetTrainerStatusResponse(_message.Message):
    __slots__ = ("trainer_id", "experiment_id", "stage", "activity", "incarnation", "step", "num_ranks", "num_gang_starts")
    TRAINER_ID_FIELD_NUMBER: _ClassVar[int]
    EXPERIMENT_ID_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    ACTIVITY_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    NUM_RANKS_FIELD_NUMBER: _ClassVar[int]
    NUM_GANG_STARTS_FIELD_NUMBER: _ClassVar[int]
    trainer_id: str
    experiment_id: str
    stage: str
    activity: str
    incarnation: int
    step: int
    num_ranks: int
    num_gang_starts: int
    def __init__(self, trainer_id: _Optional[str] = ..., experiment_id: _Optional[str] = ..., stage: _Optional[str] = ..., activity: _Optional[str] = ..., incarnation: _Optional[int] = ..., step: _Optional[int] = ..., num_ranks: _Optional[int] = ..., num_gang_starts: _Optional[int] = ...) -> None: ...

class StopTrainingRequest(_message.Message):
    __slots__ = ("tenant", "experiment_id")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    EXPERIMENT_ID_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    experiment_id: str
    def __init__(self, tenant: _Optional[str] = ..., experiment_id: _Optional[str] = ...) -> None: ...

class StopTrainingResponse(_message.Message):
    __slots__ = ("saved", "step")
    SAVED_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    saved: bool
    step: int
    def __init__(self, saved: _Optional[bool] = ..., step: _Optional[int] = ...) -> None: ...
