"""Functions of tenants run apart: from the network, from credentials, and from one another."""

import json
import os
import socket
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from services.buffer import tenants
from services.buffer.domain.operators import PipelineFunction
from services.buffer.tasksets.task_pipeline import PipelineLimits, TaskPipelineProcess
from services.buffer.tenants import TenantPolicy, WorkerIsolation
from services.buffer.workers.functions import FunctionFailed, FunctionRunner
from services.buffer.workers.process import MAX_WORKERS, reader_environment
from trinity.algorithm.advantage.samples import Samples
from trinity.algorithm.priority.candidate import Candidate
from trinity.errors import PreconditionFailed
from trinity.operators.tasks.task_pipeline import ResolvedTaskPipeline, TaskOperator
from trinity.runtime.process import worker
from trinity.runtime.process.box import MAX_OUTPUT_BYTES, Box, box_refusal, python_paths

PEEKING = "tests.unit.buffer.peeking"
ONE = [Candidate(model_version=3, use_count=1, reward=1.0, advantage=0.5, normal=0.0)]
FREE = TenantPolicy.unrestricted()
APART = replace(FREE, isolation=WorkerIsolation(is_closed=True, has_network=False))
TRUSTED = replace(
    FREE, isolation=WorkerIsolation(is_closed=True, is_trusted=True, has_network=False)
)
MEMORY_BYTES = 256 * 2**20
TOO_MUCH = MEMORY_BYTES + 64 * 2**20
NONE = replace(FREE, function_tenants=frozenset({"b"}))


def namespaces_are_permitted() -> bool:
    return not box_refusal(Box(readable=python_paths()))


needs_namespaces = pytest.mark.skipif(
    not namespaces_are_permitted(), reason="this machine allows no box"
)


@pytest.fixture
def server() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


async def seen(policy: TenantPolicy, function: str, **arguments: Any) -> float | None:
    async with FunctionRunner(10.0, 2**31, policy) as priorities:
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


@pytest.fixture
def no_box(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has the machine allow no box."""
    monkeypatch.setattr(tenants, "box_refusal", lambda _: "not here")


async def found_open(policy: TenantPolicy, calls: Sequence[tuple[str, Any]]) -> list[float | None]:
    """The results of functions in one process, one after the other."""
    async with FunctionRunner(20.0, MEMORY_BYTES, policy) as priorities:
        return [
            (await priorities.compute_priorities("a", f"{PEEKING}.{name}", arguments, ONE))[0]
            for name, arguments in calls
        ]


def attacks(folder: Path) -> list[tuple[str, Any]]:
    """Ways out of a function's process, all of which are open to the user of these tests."""
    secret = folder / "token"
    secret.write_text("secret")
    kinds = ("anonymous", "zero", "memfd", "/dev/shm")
    memory = [("shared_memory", {"kind": kind, "num_bytes": TOO_MUCH}) for kind in kinds]
    return [
        *memory,
        ("signals", {"pid": os.getpid()}),
        ("opens", {"path": str(secret)}),
        ("opens", {"path": __file__, "mode": "r+"}),
        ("child", {}),
    ]


@needs_namespaces
async def test_a_tenants_functions_are_shut_in(tmp_path: Path) -> None:
    assert await found_open(APART, attacks(tmp_path)) == [0.0] * 8
    core = ("opens", {"path": "/proc/sys/kernel/core_pattern", "mode": "r+"})
    assert await found_open(APART, [core]) == [0.0]


async def test_control_without_the_box_each_of_these_ways_is_open(
    tmp_path: Path, no_box: None
) -> None:
    del no_box
    assert await found_open(TRUSTED, attacks(tmp_path)) == [1.0] * 8


@needs_namespaces
async def test_a_users_own_functions_end_nothing_else(tmp_path: Path) -> None:
    assert await found_open(FREE, attacks(tmp_path)) == [*[1.0] * 4, 0.0, *[1.0] * 3]


async def test_without_a_box_functions_of_tenants_are_refused(no_box: None) -> None:
    del no_box
    own = PipelineFunction(name="tests.integration.buffer.slow_advantage.slow", arguments={})
    refusal = r"allows no box .*\(not here\).*TRINITY_BUFFER_FUNCTION_TRUST=true"
    async with FunctionRunner(10.0, 2**31, APART) as functions:
        with pytest.raises(FunctionFailed, match=refusal):
            await functions.load_functions("a", [own])
        [answer] = await functions.call_function("a", own, [Samples.of_groups([0.0, 1.0])])
        assert "allows no box" in answer
    async with FunctionRunner(10.0, 2**31, APART) as priorities:
        with pytest.raises(FunctionFailed, match=refusal):
            await priorities.load_priority("a", f"{PEEKING}.found", {})
    operators = (TaskOperator(name="own.Operator", args={}, is_own=True),)
    pipeline = ResolvedTaskPipeline(operators=operators, further_paths=())
    limits = PipelineLimits(call_seconds=1.0, memory_bytes=2**31)
    with pytest.raises(PreconditionFailed, match=refusal):
        async with TaskPipelineProcess(pipeline, limits, APART.isolation):
            pytest.fail("it was started")


@needs_namespaces
async def test_a_tenants_task_operators_run_in_the_box_and_keep_rows_on_disk() -> None:
    name = "tests.integration.buffer.own_task_operators.odd_ones"
    pipeline = ResolvedTaskPipeline(operators=(TaskOperator(name=name, args={}, is_own=True),))
    limits = PipelineLimits(call_seconds=60.0, memory_bytes=2**31)

    async def given() -> AsyncIterator[bytes]:
        yield b"".join(b'{"number": "%d"}\n' % n for n in range(10))

    async with TaskPipelineProcess(pipeline, limits, APART.isolation) as running:
        await running.feed(given())
        parts = [part.lines async for part in running.rows()]
    assert len(b"".join(parts).splitlines()) == 5


@needs_namespaces
async def test_output_of_functions_does_not_fill_the_log(
    capfd: pytest.CaptureFixture[str],
) -> None:
    flood = [("prints", {"num_bytes": 8 * MAX_OUTPUT_BYTES})] * 2
    await found_open(APART, flood)
    printed = capfd.readouterr().err
    assert MAX_OUTPUT_BYTES <= printed.count("x") < MAX_OUTPUT_BYTES + 1000
    assert "more output than 256 KiB a minute is left out" in printed


async def test_control_without_the_box_output_has_no_bound(
    capfd: pytest.CaptureFixture[str], no_box: None
) -> None:
    del no_box
    await found_open(TRUSTED, [("prints", {"num_bytes": 8 * MAX_OUTPUT_BYTES})])
    assert capfd.readouterr().err.count("x") >= 8 * MAX_OUTPUT_BYTES


@pytest.mark.parametrize("answer", ['{"priorities": [9.0]}', "[1]", "not JSON", "[" * 100_000])
async def test_a_forged_line_is_not_the_answer_to_a_request(answer: str) -> None:
    async with FunctionRunner(20.0, MEMORY_BYTES, FREE) as priorities:

        async def ask(function: str, **arguments: Any) -> list[float | None]:
            return await priorities.compute_priorities("a", f"{PEEKING}.{function}", arguments, ONE)

        with pytest.raises(FunctionFailed, match="your code wrote to the channel"):
            await ask("forges", answer=answer)
        assert await ask("variable", name="NO_SUCH_VARIABLE") == [0.0]


async def test_control_without_a_token_a_forged_line_is_the_answer_to_the_next_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker, "answer_of", lambda line, _: json.loads(line))
    forged = [("forges", {"answer": '{"priorities": [9.0]}'}), ("variable", {"name": "NONE"})]
    assert await found_open(FREE, forged) == [9.0, 1.0]


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
    async with FunctionRunner(10.0, 2**31) as priorities:

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
    async with FunctionRunner(10.0, 2**31, NONE) as priorities:
        with pytest.raises(FunctionFailed, match="runs no functions of tenant a"):
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
    "importlib.import_module",
)


@pytest.mark.usefixtures("plugins")
async def test_only_what_a_plug_in_defines_is_called_for_a_tenant() -> None:
    """The control: whoever may name any module has it called."""
    async with FunctionRunner(20.0, 2**31, replace(FREE, module_tenants=frozenset())) as priorities:
        for name in NOT_OF_PLUGINS:
            with pytest.raises(FunctionFailed, match="is defined in no plugin folder"):
                await priorities.compute_priorities("a", name, {}, ONE)
    async with FunctionRunner(20.0, 2**31, FREE) as priorities:
        with pytest.raises(FunctionFailed, match="TypeError: expected str"):
            await priorities.compute_priorities("a", "os.system", {}, ONE)


@pytest.mark.usefixtures("plugins")
async def test_what_a_plug_in_defines_or_registers_is_called_for_a_tenant() -> None:
    async with FunctionRunner(20.0, 2**31, replace(FREE, module_tenants=frozenset())) as priorities:
        for name, value in (("own_file.half", 0.5), ("quarter", 0.25), ("shop.prices.half", 0.5)):
            assert await priorities.compute_priorities("a", name, {}, ONE) == [value]
