from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

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

class JoinGangRequest(_message.Message):
    __slots__ = ("hello", "report")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    hello: HostHello
    report: RankReport
    def __init__(self, hello: _Optional[_Union[HostHello, _Mapping]] = ..., report: _Optional[_Union[RankReport, _Mapping]] = ...) -> None: ...

class HostHello(_message.Message):
    __slots__ = ("host", "num_hosts", "release", "unix_millis", "address", "tenant")
    HOST_FIELD_NUMBER: _ClassVar[int]
    NUM_HOSTS_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    UNIX_MILLIS_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    host: int
    num_hosts: int
    release: str
    unix_millis: int
    address: str
    tenant: str
    def __init__(self, host: _Optional[int] = ..., num_hosts: _Optional[int] = ..., release: _Optional[str] = ..., unix_millis: _Optional[int] = ..., address: _Optional[str] = ..., tenant: _Optional[str] = ...) -> None: ...

class RankReport(_message.Message):
    __slots__ = ("gang", "rank", "event_json", "ended")
    GANG_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    EVENT_JSON_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    gang: int
    rank: int
    event_json: str
    ended: str
    def __init__(self, gang: _Optional[int] = ..., rank: _Optional[int] = ..., event_json: _Optional[str] = ..., ended: _Optional[str] = ...) -> None: ...

class JoinGangResponse(_message.Message):
    __slots__ = ("gang", "start", "order_json", "kill")
    GANG_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    ORDER_JSON_FIELD_NUMBER: _ClassVar[int]
    KILL_FIELD_NUMBER: _ClassVar[int]
    gang: int
    start: RanksStart
    order_json: str
    kill: bool
    def __init__(self, gang: _Optional[int] = ..., start: _Optional[_Union[RanksStart, _Mapping]] = ..., order_json: _Optional[str] = ..., kill: _Optional[bool] = ...) -> None: ...

class RanksStart(_message.Message):
    __slots__ = ("first_rank", "num_local", "num_ranks", "master_address", "master_port")
    FIRST_RANK_FIELD_NUMBER: _ClassVar[int]
    NUM_LOCAL_FIELD_NUMBER: _ClassVar[int]
    NUM_RANKS_FIELD_NUMBER: _ClassVar[int]
    MASTER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    MASTER_PORT_FIELD_NUMBER: _ClassVar[int]
    first_rank: int
    num_local: int
    num_ranks: int
    master_address: str
    master_port: int
    def __init__(self, first_rank: _Optional[int] = ..., num_local: _Optional[int] = ..., num_ranks: _Optional[int] = ..., master_address: _Optional[str] = ..., master_port: _Optional[int] = ...) -> None: ...
