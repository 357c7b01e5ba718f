"""Tasksets: from files and from clients, each content once."""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import grpc
import psycopg
import pyarrow as pa
import pyarrow.parquet
import pytest

from services.buffer.operations.stages import needed_tasksets
from services.buffer.tasksets.library import content_identity, row_source_of
from services.buffer.tenants import TenantPolicy
from tests.integration.buffer.harness import Buffer, talk_to
from tests.integration.buffer.plans import rollout_plan
from tests.integration.buffer.process import BufferProcess
from tests.unit.config.builders import stage
from trinity.api.v1 import buffer_pb2 as pb
from trinity.config.plan.stage_plan import StagePlan


def plan_of(**taskset: object) -> StagePlan:
    return stage(buffer={"explorer_input": {"taskset": {"name": "train", **taskset}}})


async def upload(
    buffer: Buffer, request_id: str, rows: Sequence[str], name: str
) -> pb.SubmitTasksetResponse:
    async def stream() -> AsyncIterator[pb.SubmitTasksetRequest]:
        header = pb.TasksetHeader(tenant="default", name=name, request_id=request_id)
        yield pb.SubmitTasksetRequest(header=header)
        for place, row in enumerate(rows):
            yield pb.SubmitTasksetRequest(row=pb.TaskRow(json=row), num_before=place)
        yield pb.SubmitTasksetRequest(end=pb.TasksetEnd(), num_before=len(rows))

    answer: pb.SubmitTasksetResponse = await buffer.stub.SubmitTaskset(stream(), timeout=20)
    return answer


async def test_an_upload_sent_again_stores_nothing_twice(buffer: Buffer, shared_dsn: str) -> None:
    rows = [json.dumps({"prompt": str(i)}) for i in range(1200)]
    rows[3], rows[700] = "[1]", "{"
    request_id = str(uuid.uuid4())
    first = await upload(buffer, request_id, rows, "sums")
    assert (first.num_stored, first.num_refused) == (1198, 2)
    assert [one.index for one in first.refused] == [3, 700]
    again = await upload(buffer, request_id, rows, "sums")
    assert (again.taskset_id, again.num_stored) == (first.taskset_id, 1198)
    with psycopg.connect(shared_dsn) as connection:
        row = connection.execute(
            "SELECT count(*), max(index) FROM buffer.task WHERE taskset_id = %s",
            [first.taskset_id],
        ).fetchone()
    assert row == (1198, 1197)
    with pytest.raises(grpc.aio.AioRpcError, match="choose another name"):
        await upload(buffer, str(uuid.uuid4()), rows, "sums")
    opened = await buffer.open(plan_of(storage_type="client", path=None, name="sums"))
    assert opened.num_tasks == 1198


async def test_an_upload_that_broke_off_may_be_finished_or_taken_over(buffer: Buffer) -> None:
    rows = [json.dumps({"prompt": str(i)}) for i in range(600)]
    request_id = str(uuid.uuid4())
    with pytest.raises(grpc.aio.AioRpcError):
        await break_off(buffer, request_id, rows)
    plan = plan_of(storage_type="client", path=None, name="broken")
    awaited = await buffer.open_once(plan)
    assert awaited.state == pb.OpenStageResponse.STATE_READING
    assert awaited.reason == (
        "taskset broken is awaited from a client: submit it with SubmitTaskset"
    )
    opening = asyncio.ensure_future(buffer.open(plan))
    assert (await upload(buffer, request_id, rows, "broken")).num_stored == 600
    opened = await opening
    assert (opened.state, opened.num_tasks) == (pb.OpenStageResponse.STATE_OPEN, 600)


async def break_off(buffer: Buffer, request_id: str, rows: Sequence[str]) -> None:
    async def stream() -> AsyncIterator[pb.SubmitTasksetRequest]:
        header = pb.TasksetHeader(tenant="default", name="broken", request_id=request_id)
        yield pb.SubmitTasksetRequest(header=header)
        for place, row in enumerate(rows):
            yield pb.SubmitTasksetRequest(row=pb.TaskRow(json=row), num_before=place)
        yield pb.SubmitTasksetRequest(header=header, num_before=len(rows))

    await buffer.stub.SubmitTaskset(stream(), timeout=20)


async def test_an_upload_that_stops_or_lacks_a_message_is_not_taken_as_whole(
    buffer: Buffer,
) -> None:
    rows = [json.dumps({"prompt": str(i)}) for i in range(30)]
    request_id = str(uuid.uuid4())
    header = pb.SubmitTasksetRequest(
        header=pb.TasksetHeader(tenant="default", name="stopped", request_id=request_id)
    )
    messages = [
        pb.SubmitTasksetRequest(rows=pb.TaskRows(json=rows[place : place + 10]), num_before=place)
        for place in (0, 10, 20)
    ]
    end = pb.SubmitTasksetRequest(end=pb.TasksetEnd(), num_before=30)
    for stream, reason in (
        ([header, *messages], "stopped after 30 rows without an `end`"),
        ([header, messages[0], messages[2], end], "num_before is 20, but 10 rows have come"),
        ([header, *messages[:2], end], "num_before is 30, but 20 rows have come"),
    ):
        with pytest.raises(grpc.aio.AioRpcError, match=reason) as refused:
            await buffer.stub.SubmitTaskset(iter(stream), timeout=20)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    answer = await buffer.stub.SubmitTaskset(iter([header, *messages, end]), timeout=20)
    assert answer.num_stored == 30


async def test_the_same_content_is_read_once_for_all_stages(
    process: BufferProcess, shared_dsn: str, tmp_path: Path
) -> None:
    plan = rollout_plan(tmp_path, num_eval=5)
    for _ in range(2):
        async with talk_to(process) as buffer:
            both = await asyncio.gather(buffer.open(plan), buffer.open(plan))
            assert [one.num_tasks for one in both] == [12, 12]
    with psycopg.connect(shared_dsn) as connection:
        row = connection.execute(
            "SELECT count(DISTINCT taskset_id), count(*) FROM buffer.task"
            " JOIN buffer.taskset USING (tenant, taskset_id) WHERE source LIKE %s",
            [f"{tmp_path}/%"],
        ).fetchone()
    assert row == (2, 17)


async def test_a_taskset_that_takes_long_is_read_on_when_nobody_waits(
    process: BufferProcess, shared_dsn: str, tmp_path: Path
) -> None:
    plan = rollout_plan(tmp_path)
    [needed] = needed_tasksets(plan)
    assert needed.path is not None
    async with talk_to(process) as buffer, await listen(shared_dsn) as heard:
        told = row_source_of(needed, needed.path, TenantPolicy.unrestricted().grants("default"))
        source = content_identity(needed.name, told, buffer.key.experiment_id)
        async with await psycopg.AsyncConnection.connect(shared_dsn) as other_replica:
            await other_replica.execute(
                "INSERT INTO buffer.taskset (tenant, taskset_id, source, is_complete)"
                " VALUES ('default', gen_random_uuid(), %s, true)",
                [source],
            )
            answer = await buffer.open_once(plan)
            assert answer.state == pb.OpenStageResponse.STATE_READING
            assert answer.reason == "taskset train: 0 rows read so far"
            await other_replica.rollback()
        async for notification in heard.notifies(timeout=20):
            if notification.payload == "tasksets/default":
                break
        else:
            pytest.fail("nobody read the taskset")
        opened = await buffer.open_once(plan)
        assert (opened.state, opened.num_tasks) == (pb.OpenStageResponse.STATE_OPEN, 12)


async def listen(dsn: str) -> psycopg.AsyncConnection:
    connection = await psycopg.AsyncConnection.connect(dsn, autocommit=True)
    await connection.execute("LISTEN buffer")
    return connection


async def test_parquet_and_a_directory_with_splits_are_read(
    process: BufferProcess, tmp_path: Path
) -> None:
    table = pa.table({"prompt": ["a", "b", "c"], "n": [1, 2, 3]})
    directory = tmp_path / "hub"
    directory.mkdir()
    pyarrow.parquet.write_table(table, directory / "train-00000-of-00001.parquet")
    pyarrow.parquet.write_table(table.slice(0, 2), directory / "test-00000-of-00001.parquet")
    async with talk_to(process) as buffer:
        assert (await buffer.open(plan_of(path=str(directory)))).num_tasks == 3
    async with talk_to(process) as buffer:
        assert (await buffer.open(plan_of(path=str(directory), split="test"))).num_tasks == 2


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "there is no file or directory"),
        ("", "has no rows"),
        ('{"a": 1}\n{"a": \n', ":2: not valid JSON"),
        ("[1, 2]\n", "a row must be an object"),
    ],
)
async def test_a_taskset_that_cannot_be_read_is_named_with_the_reason(
    buffer: Buffer, tmp_path: Path, content: str | None, reason: str
) -> None:
    file = tmp_path / "bad.jsonl"
    if content is not None:
        file.write_text(content)
    with pytest.raises(grpc.aio.AioRpcError, match=reason) as error:
        await buffer.open(plan_of(path=str(file)))
    assert error.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert "taskset train" in (error.value.details() or "")
    file.write_text('{"prompt": "x"}\n')
    assert (await buffer.open(plan_of(path=str(file)))).num_tasks == 1
