"""The malformed requests of tests/integration/hostile reach every call of every service."""

from tests.integration.hostile.attack import CALLS
from trinity.runtime.rpc.channel import _CONTRACTS


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
