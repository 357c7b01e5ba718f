from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class HostMessage(_message.Message):
    __slots__ = ("hello", "report")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    hello: HostHello
    report: HostReport
    def __init__(self, hello: _Optional[_Union[HostHello, _Mapping]] = ..., report: _Optional[_Union[HostReport, _Mapping]] = ...) -> None: ...

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

class HostReport(_message.Message):
    __slots__ = ("start", "rank", "event_json", "ended")
    START_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    EVENT_JSON_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    start: int
    rank: int
    event_json: str
    ended: str
    def __init__(self, start: _Optional[int] = ..., rank: _Optional[int] = ..., event_json: _Optional[str] = ..., ended: _Optional[str] = ...) -> None: ...

class LeaderMessage(_message.Message):
    __slots__ = ("start", "start_json", "order_json", "kill")
    START_FIELD_NUMBER: _ClassVar[int]
    START_JSON_FIELD_NUMBER: _ClassVar[int]
    ORDER_JSON_FIELD_NUMBER: _ClassVar[int]
    KILL_FIELD_NUMBER: _ClassVar[int]
    start: int
    start_json: str
    order_json: str
    kill: bool
    def __init__(self, start: _Optional[int] = ..., start_json: _Optional[str] = ..., order_json: _Optional[str] = ..., kill: _Optional[bool] = ...) -> None: ...
