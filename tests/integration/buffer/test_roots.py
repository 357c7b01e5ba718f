"""Tasksets are read from the allowed roots alone, whatever a plan names."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import grpc
import pytest

from tests.integration.buffer.harness import Buffer, talk_to
from tests.integration.buffer.plans import rollout_plan, write_tasks
from tests.integration.buffer.process import BufferProcess


@pytest.fixture(scope="module")
def allowed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The only directory that the buffer may read from."""
    directory = tmp_path_factory.mktemp("roots") / "allowed"
    directory.mkdir()
    return directory


@pytest.fixture(scope="module")
def bounded(allowed: Path, shared_dsn: str, shared_nats_url: str) -> Iterator[BufferProcess]:
    roots = {"TRINITY_BUFFER_TASKSET_ROOTS": str(allowed)}
    started = BufferProcess(shared_dsn, shared_nats_url, allowed.parent / "buffer.log", roots)
    try:
        asyncio.run(started.start())
        yield started
    finally:
        started.kill()


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
