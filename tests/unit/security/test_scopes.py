"""Every call of the contracts has its scopes, and nothing else has."""

import pkgutil
import re
from importlib import import_module
from pathlib import Path

import pytest

import trinity.api.v1
from trinity.runtime.security.authorization import (
    EXPERIMENT,
    OPEN_METHODS,
    ROLE_SCOPES,
    SCOPES_OF_METHODS,
    TENANT,
    WHOLE_PROCESS_METHODS,
    Scope,
    field_paths,
)
from trinity.runtime.security.document import render_page, requests

ROOT = Path(__file__).parents[3]
HEARTBEATS = "runtime/presence.py"
SHARED = {
    "explorer": (HEARTBEATS, "data/media.py"),
    "trainer": (HEARTBEATS,),
    "buffer": (HEARTBEATS,),
}
"""Shared modules through which services call."""
NAME_NO_TENANT = {"BufferService/WatchCommits", "SynchronizerService/GetStatus"}
"""One answers about the results of a producer that only itself knows, one filters what it shows."""


def contract_methods() -> dict[str, object]:
    """Every method of every proto by its full name, with the type of its request."""
    modules = [one.name for one in pkgutil.iter_modules(trinity.api.v1.__path__)]
    found = {}
    for name in modules:
        if name.endswith("_pb2"):
            file = import_module(f"trinity.api.v1.{name}").DESCRIPTOR
            for service in file.services_by_name.values():
                for method in service.methods:
                    found[f"{service.full_name}/{method.name}"] = method.input_type
    return found


def test_the_table_names_every_call_and_no_other() -> None:
    assert set(SCOPES_OF_METHODS) == set(contract_methods())
    assert all(SCOPES_OF_METHODS.values())


def test_what_is_open_or_about_a_process_is_in_no_doubt() -> None:
    assert all(name.startswith("grpc.health.v1.Health/") for name in OPEN_METHODS)
    assert set(SCOPES_OF_METHODS) >= WHOLE_PROCESS_METHODS


def test_every_request_names_a_tenant_or_an_experiment_or_is_a_known_exception() -> None:
    nameless = {
        method.rpartition("v1.")[2]
        for method, request in contract_methods().items()
        if not field_paths(request, TENANT) and not field_paths(request, EXPERIMENT)
    }
    whole = {method.rpartition("v1.")[2] for method in WHOLE_PROCESS_METHODS}
    assert nameless - whole <= NAME_NO_TENANT


def test_no_service_may_steer_or_submit() -> None:
    for role in ("synchronizer", "buffer", "trainer", "explorer"):
        assert not set(ROLE_SCOPES[role]) & {Scope.STEER, Scope.SUBMIT, Scope.READ}


@pytest.mark.parametrize("role", SHARED)
def test_a_services_scope_allows_what_its_code_calls_and_no_more(role: str) -> None:
    files = [
        *(ROOT / "services" / role).rglob("*.py"),
        *(ROOT / "trinity" / f for f in SHARED[role]),
    ]
    text = "".join(f.read_text() for f in files)
    called = set(re.findall(r"[sS]tub(?:\(channel\))?\.([A-Z]\w+)", text))
    allowed = {name for name, scopes in SCOPES_OF_METHODS.items() if Scope(role) in scopes}
    assert {name.rpartition("/")[2] for name in allowed} == called - {"Watch", "Check"}


def test_the_page_has_every_call_as_the_code_allows_it() -> None:
    text = (ROOT / "docs" / "security.md").read_text()
    assert render_page(text) == text
    assert {method for method, _ in requests()} == set(contract_methods())
