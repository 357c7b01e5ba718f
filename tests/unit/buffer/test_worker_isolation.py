"""Functions of tenants run apart: from the network, from credentials, and from one another."""

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from services.buffer.domain.operators import PipelineFunction
from services.buffer.tenants import TenantPolicy, WorkerIsolation
from services.buffer.workers.functions import (
    FunctionFailed,
    FunctionRunner,
    PriorityFailed,
    PriorityRunner,
)
from services.buffer.workers.process import MAX_WORKERS, reader_environment
from trinity.algorithm.advantage.samples import Samples
from trinity.algorithm.priority.candidate import Candidate
from trinity.runtime.child_process import OFFLINE_IDENTITY, OWN_IDENTITY, Identity

PEEKING = "tests.unit.buffer.peeking"
ONE = [Candidate(model_version=3, use_count=1, reward=1.0, advantage=0.5, normal=0.0)]
FREE = TenantPolicy.unrestricted()
APART = replace(FREE, isolation=WorkerIsolation(has_network=False))
NONE = replace(FREE, function_tenants=frozenset({"b"}))


def namespaces_are_permitted() -> bool:
    return subprocess.run(["unshare", "-Urn", "true"], capture_output=True).returncode == 0


needs_namespaces = pytest.mark.skipif(
    not namespaces_are_permitted(), reason="the kernel permits no network namespaces here"
)


@pytest.fixture
def server() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


async def seen(policy: TenantPolicy, function: str, **arguments: Any) -> float | None:
    async with PriorityRunner(10.0, 2**31, policy) as priorities:
        name = f"{PEEKING}.{function}"
        [number] = await priorities.compute_priorities("a", name, arguments, ONE)
        return number


@needs_namespaces
@pytest.mark.parametrize("function", ["network", "network_again"])
async def test_functions_have_no_network_and_do_not_get_it_back(function: str, server: int) -> None:
    assert await seen(APART, function, port=server) == 0.0
    assert await seen(FREE, function, port=server) == 1.0


@needs_namespaces
async def test_functions_without_a_network_cannot_read_the_buffers_environment() -> None:
    assert await seen(APART, "parents_environment") == 0.0
    assert await seen(FREE, "parents_environment") == 1.0


NOBODY = 65534
SYSTEM_PYTHON = "/usr/bin/python3"
"""That of the tests may lie in a folder of root's."""


def connects_as_nobody(port: int, identity: Identity) -> subprocess.CompletedProcess[str]:
    code = (
        f"import os, socket; assert os.getuid() == {NOBODY}; "
        f"socket.create_connection(('127.0.0.1', {port}), 5)"
    )
    command = identity.command([SYSTEM_PYTHON, "-c", code], death_signal=signal.SIGKILL)
    argv, options = [SYSTEM_PYTHON, *command[1:]], {"capture_output": True, "text": True}
    return subprocess.run(argv, user=NOBODY, group=NOBODY, extra_groups=[], cwd="/", **options)  # type: ignore[call-overload, no-any-return]


@needs_namespaces
def test_another_user_than_root_loses_the_network_too(server: int) -> None:
    if os.geteuid() != 0 or not Path(SYSTEM_PYTHON).exists():
        pytest.skip("the other tests run as such a user, or there is no Python for it")
    free = connects_as_nobody(server, OWN_IDENTITY)
    if "Permission denied" in free.stderr:
        pytest.skip("another user may not read this checkout")
    assert free.returncode == 0, free.stderr
    assert "unreachable" in connects_as_nobody(server, OFFLINE_IDENTITY).stderr


async def test_functions_see_no_credentials_in_their_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = ("TRINITY_BUFFER_POSTGRES_DSN", "TRINITY_SECURITY_DIR", "HF_TOKEN", "PGPASSWORD")
    for name in names:
        monkeypatch.setenv(name, "secret")
    assert [await seen(FREE, "variable", name=name) for name in names] == [0.0] * len(names)
    assert await seen(FREE, "variable", name="PATH") == 1.0
    shown = replace(FREE, isolation=WorkerIsolation(variables=("HF_TOKEN",)))
    assert await seen(shown, "variable", name="HF_TOKEN") == 1.0


def test_the_reader_of_rows_sees_none_of_the_buffers_variables() -> None:
    given = {"TRINITY_BUFFER_NATS_URL": "secret", "HF_TOKEN": "the reader's own", "PATH": "/bin"}
    assert reader_environment(given) == {"HF_TOKEN": "the reader's own", "PATH": "/bin"}


async def test_what_a_tenant_leaves_in_its_process_no_other_tenant_finds() -> None:
    async with PriorityRunner(10.0, 2**31) as priorities:

        async def found(tenant: str) -> list[float | None]:
            return await priorities.compute_priorities(tenant, f"{PEEKING}.found", {}, ONE)

        assert [await found(tenant) for tenant in "abab"] == [[0.0], [0.0], [1.0], [1.0]]
        for number in range(MAX_WORKERS):
            await found(f"further-{number}")
        assert await found("a") == [0.0]


async def test_functions_of_a_tenant_that_is_not_named_do_not_run() -> None:
    own = PipelineFunction(name="tests.integration.buffer.slow_advantage.slow", arguments={})
    part = Samples.of_groups([0.0, 1.0])
    async with FunctionRunner(10.0, 2**31, NONE) as functions:
        with pytest.raises(FunctionFailed, match="runs no functions of tenant a"):
            await functions.load_functions("a", [own])
        [answer] = await functions.call_function("a", own, [part])
        assert "runs no functions of tenant a" in answer
        await functions.load_functions("b", [own])
        await functions.load_functions("a", [PipelineFunction(name="grpo", arguments={})])
    async with PriorityRunner(10.0, 2**31, NONE) as priorities:
        with pytest.raises(PriorityFailed, match="runs no functions of tenant a"):
            await priorities.load_priority("a", f"{PEEKING}.found", {})
        await priorities.load_priority("b", f"{PEEKING}.found", {})


async def test_experience_operators_ask_the_allowed_data_juicer_server_alone() -> None:
    rules = replace(FREE, addresses=())
    juicer = PipelineFunction(
        kind="operator",
        name="data_juicer",
        arguments={"server_url": "http://127.0.0.1:1", "operators": []},
    )
    async with FunctionRunner(10.0, 2**31, rules) as functions:
        with pytest.raises(FunctionFailed, match="Data-Juicer server"):
            await functions.load_functions("a", [juicer])
        [answer] = await functions.call_function("a", juicer, [Samples.of_groups([0.0, 1.0])])
        assert "is not allowed for tenant a" in answer
    async with FunctionRunner(10.0, 2**31) as functions:
        await functions.load_functions("a", [juicer])


PLUGIN = """
from os import system
from trinity.algorithm.priority import PRIORITIES

def half(candidate):
    return candidate.reward / 2

@PRIORITIES.register_module("quarter")
def of_a_quarter(candidate):
    return candidate.reward / 4
"""


@pytest.fixture
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_file.py").write_text(PLUGIN)
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "prices.py").write_text(PLUGIN.replace("quarter", "fourth"))
    monkeypatch.setenv("TRINITY_PLUGIN_DIRS", str(tmp_path))


NOT_OF_PLUGINS = (
    *("os.system", "builtins.exec", "subprocess.run", "posixpath.os.system", "this.s"),
    *("own_file.system", "shop.prices.system", "trinity.plugins.load_file", "own_file.missing"),
    *("trinity.plugins.own_file.system", "importlib.import_module"),
)


@pytest.mark.usefixtures("plugins")
async def test_only_what_a_plug_in_defines_is_called_for_a_tenant() -> None:
    """The control: whoever may name any module has it called."""
    async with PriorityRunner(20.0, 2**31, replace(FREE, module_tenants=frozenset())) as priorities:
        for name in NOT_OF_PLUGINS:
            with pytest.raises(PriorityFailed, match="is defined in no plugin folder"):
                await priorities.compute_priorities("a", name, {}, ONE)
    async with PriorityRunner(20.0, 2**31, FREE) as priorities:
        with pytest.raises(PriorityFailed, match="TypeError: expected str"):
            await priorities.compute_priorities("a", "os.system", {}, ONE)


@pytest.mark.usefixtures("plugins")
async def test_what_a_plug_in_defines_or_registers_is_called_for_a_tenant() -> None:
    async with PriorityRunner(20.0, 2**31, replace(FREE, module_tenants=frozenset())) as priorities:
        for name, value in (("own_file.half", 0.5), ("quarter", 0.25), ("shop.prices.half", 0.5)):
            assert await priorities.compute_priorities("a", name, {}, ONE) == [value]
