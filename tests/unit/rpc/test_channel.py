"""What a channel does by itself when a service is away for a moment."""

import json

from tests.integration.hostile.attack import CALLS
from trinity.api.v1 import buffer_pb2
from trinity.runtime.rpc.channel import _CONTRACTS, RETRY_CONFIG


def test_calls_are_sent_again_and_streams_are_not() -> None:
    (config,) = json.loads(RETRY_CONFIG)["methodConfig"]
    retried = {(one["service"], one["method"]) for one in config["name"]}
    service = buffer_pb2.DESCRIPTOR.services_by_name["BufferService"]
    streams = {one.name for one in service.methods if one.client_streaming or one.server_streaming}
    assert streams >= {"SubmitTaskset", "UploadBlob", "GetBatch", "WatchCommits"}
    own = {name for owner, name in retried if owner == service.full_name}
    assert own == {one.name for one in service.methods} - streams


def test_every_call_of_every_contract_is_attacked() -> None:
    attacked = {method.full_name for methods in CALLS.values() for method in methods}
    there = {
        method.full_name
        for file in _CONTRACTS
        for service in file.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }
    assert there - attacked == set()
    assert {name.split(".")[-2] for name in there} >= {"QueryService", "TasksetService"}
