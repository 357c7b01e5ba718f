"""Tasksets are read from what a tenant is allowed alone, and its functions run if it is named."""

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from tests.integration.buffer.harness import Buffer, talk_to
from tests.integration.buffer.plans import rollout_plan, write_tasks
from tests.integration.buffer.process import BufferProcess
from tests.support.images import png
from trinity.config.plan.parts import ResolvedOperator
from trinity.config.plan.stage_plan import StagePlan


@pytest.fixture(scope="module")
def allowed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The only directory that the buffer may read from."""
    directory = tmp_path_factory.mktemp("roots") / "allowed"
    directory.mkdir()
    return directory


@pytest.fixture(scope="module")
def bounded(allowed: Path, shared_dsn: str, shared_nats_url: str) -> Iterator[BufferProcess]:
    plugins = allowed.parent / "plugins"
    plugins.mkdir()
    rules = {
        "TRINITY_BUFFER_TASKSET_ROOTS": f"default={allowed}:other={allowed.parent}",
        "TRINITY_BUFFER_TASKSET_ADDRESSES": "other=*",
        "TRINITY_BUFFER_FUNCTION_TENANTS": "other",
        "TRINITY_PLUGIN_DIRS": str(plugins),
    }
    started = BufferProcess(shared_dsn, shared_nats_url, allowed.parent / "buffer.log", rules)
    try:
        asyncio.run(started.start())
        yield started
    finally:
        started.kill()


@pytest.fixture
async def other(bounded: BufferProcess) -> AsyncIterator[Buffer]:
    """The calls of a tenant that may have more read, and its functions run."""
    async with talk_to(bounded) as calls:
        yield replace(calls, key=replace(calls.key, tenant="other"))


@pytest.fixture
async def buffer(bounded: BufferProcess) -> AsyncIterator[Buffer]:
    async with talk_to(bounded) as calls:
        yield calls


def _outside(allowed: Path) -> str:
    return write_tasks(allowed.parent / "secret.jsonl", 4)


def _link(allowed: Path) -> str:
    (allowed / "link.jsonl").symlink_to(write_tasks(allowed.parent / "secret.jsonl", 4))
    return str(allowed / "link.jsonl")


def _fifo(allowed: Path) -> str:
    os.mkfifo(allowed / "pipe.jsonl")
    return str(allowed / "pipe.jsonl")


def _device(allowed: Path) -> str:
    (allowed / "zero.jsonl").symlink_to("/dev/zero")
    return str(allowed / "zero.jsonl")


def _in_directory(allowed: Path) -> str:
    (allowed / "many").mkdir()
    write_tasks(allowed / "many" / "a.jsonl", 4)
    (allowed / "many" / "b.jsonl").symlink_to(write_tasks(allowed.parent / "secret.jsonl", 4))
    return str(allowed / "many")


async def test_an_image_is_read_from_the_tenants_directories_alone(
    buffer: Buffer, other: Buffer, tmp_path: Path, allowed: Path
) -> None:
    secret = allowed.parent / "secret.png"
    secret.write_bytes(png())
    (allowed / "link.png").symlink_to(secret)
    (allowed / "up").symlink_to(allowed.parent)
    for name in ("../secret.png", str(secret), f"file://{secret}", "link.png", "up/secret.png"):
        rows = allowed / "pictures.jsonl"
        rows.write_text(json.dumps({"prompt": "<image>?", "response": "2", "images": [name]}))
        taskset = {"name": "train", "path": str(rows), "format": {"image_key": "images"}}
        plan = rollout_plan(tmp_path, explorer_input={"taskset": taskset})
        with pytest.raises(grpc.aio.AioRpcError, match="lies outside of") as error:
            await buffer.open(plan)
        assert "pictures.jsonl:1, column 'images': image 0: " in str(error.value.details())
        assert (await other.open(plan)).num_tasks == 1, "the control"


@pytest.mark.parametrize(
    ("place", "said"),
    [
        (_outside, "lies outside of"),
        (_link, "lies outside of"),
        (_fifo, "is a FIFO"),
        (_device, "lies outside of"),
        (_in_directory, "lies outside of"),
    ],
)
async def test_what_lies_elsewhere_or_is_no_file_is_refused_by_name(
    buffer: Buffer, tmp_path: Path, allowed: Path, place: Callable[[Path], str], said: str
) -> None:
    path = place(allowed)
    taskset = {"explorer_input": {"taskset": {"name": "train", "path": path}}}
    with pytest.raises(grpc.aio.AioRpcError, match=said) as error:
        await buffer.open(rollout_plan(tmp_path, **taskset))  # type: ignore[arg-type]
    assert error.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert Path(path).name in str(error.value.details())


async def test_what_lies_there_is_read(buffer: Buffer, allowed: Path) -> None:
    opened = await buffer.open(rollout_plan(allowed))
    assert opened.total_train_steps == 4


async def refusal(buffer: Buffer, plan: StagePlan) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await buffer.open(plan)
    assert error.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    return str(error.value.details())


async def test_a_tenant_gets_no_rows_of_another_tenants_directory(
    buffer: Buffer, other: Buffer, allowed: Path, tmp_path: Path
) -> None:
    """As by the path of another run's `run.jsonl`, whose lines came back as tasks."""
    path = write_tasks(allowed.parent / "run.jsonl", 4)
    plan = rollout_plan(tmp_path, explorer_input={"taskset": {"name": "train", "path": path}})
    refused = await refusal(buffer, plan)
    assert "lies outside of" in refused
    assert str(allowed) in refused
    assert (await other.open(plan)).num_tasks == 4


async def test_the_buffer_connects_to_no_address_that_a_tenant_makes_up(
    buffer: Buffer, other: Buffer, tmp_path: Path
) -> None:
    """A port that listens and one that does not get the same words."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0.5)
        port = listening.getsockname()[1]
        told = set()
        for asked in (port, 1):
            address = f"postgresql://127.0.0.1:{asked}/x?connect_timeout=2"
            taskset = {"name": "train", "path": address, "storage_type": "sql", "table": "t"}
            plan = rollout_plan(tmp_path, explorer_input={"taskset": taskset})
            told.add((await refusal(buffer, plan)).replace(f":{asked}/", ":PORT/"))
        with pytest.raises(TimeoutError):
            listening.accept()
        assert len(told) == 1
        assert "is not allowed for tenant default" in told.pop()
        opening = asyncio.create_task(other.open(plan))
        assert "cannot be read" in str(await asyncio.gather(opening, return_exceptions=True))


def with_advantage(plan: StagePlan, name: str) -> StagePlan:
    """The plan as a client may write it by itself, without the checks of the command line."""
    algorithm = plan.algorithm.model_copy(
        update={"advantage_fn": name, "advantage_fn_args": {}, "advantage_in_trainer": False}
    )
    return plan.model_copy(update={"algorithm": algorithm})


async def test_a_file_runs_neither_by_its_path_nor_by_an_operator_called_so(
    buffer: Buffer, other: Buffer, allowed: Path
) -> None:
    file, ran = allowed / "file.py", allowed / "it-ran"
    file.write_text(
        "from trinity.algorithm.advantage.samples import Advantages\n"
        f"open({str(ran)!r}, 'w').close()\n"
        "def f(samples): return Advantages(samples.rewards)\n"
    )
    plan = rollout_plan(allowed)
    path = f"{file.with_suffix('')}.f"
    operator = ResolvedOperator(name=path, args={})
    for asked in (with_advantage(plan, path), plan.model_copy(update={"operators": (operator,)})):
        assert "runs no functions of tenant default" in await refusal(buffer, asked)
        assert "cannot be the name of" in await refusal(other, asked)
    assert not ran.exists()
    (allowed.parent / "plugins" / "own_file.py").write_text(file.read_text())
    named = with_advantage(plan, "own_file.f")
    assert "runs no functions of tenant default" in await refusal(buffer, named)
    assert not ran.exists()
    assert (await other.open(named)).total_train_steps == 4
    assert ran.exists()
