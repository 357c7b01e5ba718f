"""Tasksets through the SDK and the command line: submitted, listed, shown, deleted, queued."""

import asyncio
import contextlib
import functools
import json
import os
import sqlite3
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path

import psycopg
import pytest

from tests.integration.buffer.harness import Buffer, talk_to
from tests.integration.buffer.plans import BATCH_SIZE, rollout_plan
from tests.integration.buffer.process import BufferProcess
from tests.support.forking.starts import run_module
from trinity.api.v1 import buffer_pb2 as pb
from trinity.client import AsyncTasksets, Tasksets, TasksetState
from trinity.config.plan.stage_plan import StagePlan
from trinity.errors import NotFound, PreconditionFailed, Unavailable

COMMAND_SECONDS = 120
WAITING = pb.LeaseAssignmentsResponse.STATE_WAITING


def rows(count: int) -> list[dict[str, object]]:
    return [{"prompt": str(i)} for i in range(count)]


@contextlib.asynccontextmanager
async def client_of(process: BufferProcess) -> AsyncIterator[AsyncTasksets]:
    """For a tenant of its own."""
    async with AsyncTasksets(process.address, tenant=uuid.uuid4().hex) as tasksets:
        yield tasksets


async def test_rows_are_stored_or_refused_one_by_one(process: BufferProcess) -> None:
    given: list[Mapping[str, object] | str] = [
        {"prompt": "a"},
        "[1]",
        '{"prompt": NaN}',
        {"prompt": "b"},
        '{"prompt":',
    ]
    async with client_of(process) as tasksets:
        done = await tasksets.submit("sums", given)
        assert (done.num_stored, done.num_refused) == (2, 3)
        assert [(one.index, one.reason[:14]) for one in done.refused] == [
            (1, "a row must be "),
            (2, "not valid JSON"),
            (4, "not valid JSON"),
        ]
        again = await tasksets.submit("sums", given, request_id=done.request_id)
        assert again == done
        with pytest.raises(PreconditionFailed, match="choose another name"):
            await tasksets.submit("sums", given)
        found = await tasksets.get("sums", num_rows=10)
        assert found.rows == ({"prompt": "a"}, {"prompt": "b"})
        assert (found.num_rows, found.num_refused, found.state) == (2, 3, TasksetState.COMPLETE)


async def test_a_submission_through_the_death_of_the_buffer_is_stored_once(
    own_process: BufferProcess, buffer_dsn: str
) -> None:
    given = rows(3000)
    struck = asyncio.Event()

    class Struck:
        """Rows half of which come only when the buffer has died."""

        def __iter__(self) -> Iterator[dict[str, object]]:
            for number, row in enumerate(given):
                if number == 2000 and not struck.is_set():
                    struck.set()
                    own_process.kill()
                yield row

    async with client_of(own_process) as tasksets:
        submitting = asyncio.create_task(tasksets.submit("sums", Struck()))
        await struck.wait()
        await own_process.start()
        done = await submitting
        assert (done.num_stored, done.num_refused) == (3000, 0)
        found = await tasksets.get("sums", first_row=2995, num_rows=10)
    assert [row["prompt"] for row in found.rows] == [str(i) for i in range(2995, 3000)]
    with psycopg.connect(buffer_dsn) as connection:
        query = "SELECT count(*), count(DISTINCT index), max(index) FROM buffer.task"
        assert connection.execute(query).fetchone() == (3000, 3000, 2999)


async def test_rows_that_come_only_once_are_not_sent_again(own_process: BufferProcess) -> None:
    async with client_of(own_process) as tasksets:
        own_process.kill()
        with pytest.raises(Unavailable, match="request id"):
            await tasksets.submit("sums", iter(rows(3)))


async def test_what_a_stage_needs_is_not_deleted_and_the_rest_is(
    process: BufferProcess, tmp_path: Path
) -> None:
    name = f"needed-{uuid.uuid4()}"
    async with AsyncTasksets(process.address) as tasksets, talk_to(process) as buffer:
        await tasksets.submit(name, rows(12))
        await buffer.open(taskset_plan(tmp_path, "client", name))
        with pytest.raises(PreconditionFailed, match="needed: stage rft of experiment"):
            await tasksets.delete(name)
        assert (await tasksets.get(name)).num_stages == 1
    async with client_of(process) as tasksets:
        for number in range(3):
            await tasksets.submit(f"sums-{number}", rows(2))
        assert [one.name for one in await tasksets.list()] == ["sums-2", "sums-1", "sums-0"]
        assert await tasksets.delete("sums-1") == 2
        assert [one.name for one in await tasksets.list()] == ["sums-2", "sums-0"]
        for call in (tasksets.get("sums-1"), tasksets.delete("sums-1")):
            with pytest.raises(NotFound, match="there is no taskset sums-1"):
                await call
        with pytest.raises(PreconditionFailed, match="is no queue"):
            await tasksets.close_queue("sums-0")


def taskset_plan(
    directory: Path, storage_type: str, name: str, steps: int = 4, path: Path | None = None
) -> StagePlan:
    return rollout_plan(
        directory,
        total_steps=steps,
        explorer_input={
            "default_workflow_type": "simple_workflow",
            "taskset": {
                "name": name,
                "storage_type": storage_type,
                "path": None if path is None else str(path),
            },
            "eval_tasksets": [],
        },
    )


async def train(buffer: Buffer, step: int) -> list[int]:
    """One step, if there are tasks for it; answers their rows."""
    granted = (await buffer.lease()).assignments
    await buffer.finish_all(granted)
    await buffer.batch(step)
    await buffer.report(step)
    await buffer.record(step)
    return [one.task_index for one in granted]


async def test_a_queue_feeds_the_training_until_it_is_closed(
    process: BufferProcess, tmp_path: Path
) -> None:
    name = f"queue-{uuid.uuid4()}"
    async with AsyncTasksets(process.address) as tasksets, talk_to(process) as buffer:
        backup = tmp_path / "made" / "queue.db"
        plan = taskset_plan(tmp_path, "queue", name, steps=9, path=backup)
        first = await buffer.open_once(plan)
        assert first.reason.startswith(f"queue {name} is awaited from a client")
        await tasksets.submit(name, rows(2), is_queue=True)
        assert (await tasksets.get(name)).state is TasksetState.OPEN
        assert (await buffer.open(plan)).total_explore_steps == 9
        await buffer.begin()
        await buffer.record(0)
        waiting = await buffer.lease(wait_seconds=0)
        assert waiting.reason == (
            f"explore step 1 waits until the queue {name} has {BATCH_SIZE} tasks, it has 2"
        )
        leasing = asyncio.create_task(train(buffer, 1))
        await tasksets.submit(name, rows(3), is_queue=True)
        assert await leasing == [0, 1, 2]
        await tasksets.submit(name, rows(2), is_queue=True)
        assert await train(buffer, 2) == [3, 4, 5]
        assert (
            await buffer.lease(wait_seconds=0)
        ).state == pb.LeaseAssignmentsResponse.STATE_WAITING
        assert await tasksets.close_queue(name) == 7
        with pytest.raises(PreconditionFailed, match="is closed"):
            await tasksets.submit(name, rows(1), is_queue=True)
        await buffer.lease(wait_seconds=0)
        head, _ = await buffer.batch(3)
        assert head.state == pb.BatchHead.STATE_DRAINED
        notices = [one.notice.text for one in await buffer.events("notice")]
        assert notices[-1] == (
            f"queue {name} is closed and used up: 2 train steps in all; its last 1 tasks make no "
            f"explore step of {BATCH_SIZE}"
        )
        await buffer.finish(2)
        async with asyncio.timeout(COMMAND_SECONDS):
            while len(backed_up(backup, name)) < 7:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
    assert backed_up(backup, name) == ["0", "1", "0", "1", "2", "0", "1"]
    async with talk_to(process) as buffer:
        again = await buffer.open(taskset_plan(tmp_path, "sql", name, path=backup))
        assert again.num_tasks == 7, "the backup is a taskset"


def backed_up(path: Path, name: str) -> list[str]:
    """The prompts in a backup, in their order."""
    if not path.exists():
        return []
    with contextlib.closing(sqlite3.connect(path)) as connection:
        try:
            rows = connection.execute(f'SELECT raw_task FROM "{name}" ORDER BY id').fetchall()
        except sqlite3.OperationalError:  # it is being made
            return []
    return [json.loads(task)["prompt"] for (task,) in rows]


def trinity(process: BufferProcess, *arguments: str) -> "subprocess.CompletedProcess[str]":
    where = ("--buffer", process.address, "--tenant", "shell")
    words, env = ("taskset", *arguments, *where), {**os.environ, "COLUMNS": "200"}
    return run_module("trinity.cli.main", *words, env=env, timeout=COMMAND_SECONDS)


def test_the_command_line_says_what_was_stored_and_what_was_refused(
    process: BufferProcess, tmp_path: Path
) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_text('{"prompt": "1+1="}\n{"prompt": \n{"prompt": "2+2="}\n')
    done = trinity(process, "submit", str(file), "--name", "sums")
    assert done.returncode == 3, done.stderr
    assert done.stdout.startswith(
        "taskset sums: 2 rows stored, 1 refused\n  row 1 (from 0): not valid JSON"
    )
    listed = trinity(process, "list")
    assert "sums" in listed.stdout and "complete" in listed.stdout
    shown = trinity(process, "show", "sums", "--rows", "1", "--first", "1")
    assert "taskset sums: 2 rows, complete" in shown.stdout and "2+2=" in shown.stdout
    assert trinity(process, "delete", "sums").stdout == "taskset sums is deleted, 2 rows\n"
    gone = trinity(process, "show", "sums")
    assert (gone.returncode, gone.stderr) == (1, "error: there is no taskset sums\n")


async def test_of_many_refused_rows_the_first_thousand_are_told_and_all_are_counted(
    process: BufferProcess,
) -> None:
    given = ["[1]"] * 1_001 + ['{"prompt": "1+1="}']
    async with client_of(process) as tasksets:
        done = await tasksets.submit("mostly-wrong", given)
        assert (done.num_stored, done.num_refused) == (1, 1_001)
        assert [one.index for one in done.refused] == list(range(1_000))
        assert (await tasksets.get("mostly-wrong")).num_refused == 1_001


def test_the_command_line_says_how_many_more_were_refused_than_it_lists(
    process: BufferProcess, tmp_path: Path
) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_text("[1]\n" * 1_001 + '{"prompt": "1+1="}\n')
    done = trinity(process, "submit", str(file), "--name", "mostly-wrong")
    assert done.returncode == 3, done.stderr
    said, *listed, more = done.stdout.splitlines()
    assert said == "taskset mostly-wrong: 1 row stored, 1,001 refused"
    assert listed == [f"  row {place} (from 0): a row must be a JSON object" for place in range(20)]
    assert more == "  and 981 more"
    assert "refused  1,001 rows" in trinity(process, "show", "mostly-wrong").stdout


def test_code_without_an_event_loop_uses_the_same_calls(process: BufferProcess) -> None:
    with Tasksets(process.address, tenant=uuid.uuid4().hex) as tasksets:
        assert tasksets.submit("sums", rows(3)).num_stored == 3
        assert [one.name for one in tasksets.list()] == ["sums"]
        assert tasksets.get("sums", num_rows=1).rows == ({"prompt": "0"},)
        assert tasksets.delete("sums") == 3


async def test_a_client_that_has_the_published_protos_alone_submits_tasks(
    process: BufferProcess, tmp_path: Path
) -> None:
    """The protos are compiled under another name, with nothing of this repository imported."""
    foreign = tmp_path / "foreign.py"
    foreign.write_text(FOREIGN)
    protos = Path(__file__).parents[3] / "proto"
    command = [sys.executable, str(foreign), str(protos), process.address]
    run = functools.partial(subprocess.run, command, capture_output=True, text=True, cwd=tmp_path)
    done = await asyncio.to_thread(run, timeout=COMMAND_SECONDS)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "stored": 1,
        "refused": [[1, "a row must be a JSON object"]],
        "rows": ['{"prompt": "1+1="}'],
    }
    async with AsyncTasksets(process.address, tenant="foreign") as tasksets:
        assert (await tasksets.get("sums")).num_rows == 1


FOREIGN = """
import json, sys, tempfile, uuid
import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc_tools import __path__ as tools, protoc

protos, address = sys.argv[1:]
assert not any(name.partition(".")[0] == "trinity" for name in sys.modules)
with tempfile.NamedTemporaryFile() as file:
    wanted = [f"trinity/api/v1/{name}.proto" for name in ("buffer", "taskset")]
    includes = [f"-I{protos}", f"-I{tools[0]}/_proto"]
    options = [*includes, "--include_imports", f"--descriptor_set_out={file.name}"]
    assert protoc.main(["protoc", *options, *wanted]) == 0
    files = descriptor_pb2.FileDescriptorSet.FromString(file.read())
pool = descriptor_pool.DescriptorPool()
for one in files.file:
    pool.Add(one)
classes = message_factory.GetMessageClassesForFiles([one.name for one in files.file], pool)
new = lambda name: classes[f"trinity.api.v1.{name}"]

channel = grpc.insecure_channel(address)
submit = channel.stream_unary(
    "/trinity.api.v1.BufferService/SubmitTaskset",
    request_serializer=lambda message: message.SerializeToString(),
    response_deserializer=new("SubmitTasksetResponse").FromString,
)
get = channel.unary_unary(
    "/trinity.api.v1.TasksetService/GetTaskset",
    request_serializer=lambda message: message.SerializeToString(),
    response_deserializer=new("GetTasksetResponse").FromString,
)
request = new("SubmitTasksetRequest")
header = {"tenant": "foreign", "name": "sums", "request_id": str(uuid.uuid4())}
rows = [json.dumps({"prompt": "1+1="}), "7"]
tasks = ({"row": {"json": row}, "num_before": place} for place, row in enumerate(rows))
parts = [{"header": header}, *tasks, {"end": {}, "num_before": len(rows)}]
answer = submit(iter([request(**part) for part in parts]), timeout=30)
found = get(new("GetTasksetRequest")(tenant="foreign", taskset="sums", num_rows=5), timeout=30)
refused = [[one.index, one.reason] for one in answer.refused]
print(json.dumps({"stored": answer.num_stored, "refused": refused, "rows": list(found.rows)}))
"""
