"""Tasksets that nobody refers to are deleted after a week; nobody else's."""

import asyncio
import uuid
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from services.buffer.maintenance import clean_up_once, delete_unused_tasksets
from services.buffer.store.database import BufferDatabase
from tests.integration.buffer.harness import Buffer
from tests.integration.buffer.impatient import impatient_database
from tests.integration.buffer.old_reports import fill_with_old_reports, held_old_report
from tests.integration.buffer.plans import rollout_plan
from tests.integration.buffer.process import BufferProcess
from trinity.api.v1 import buffer_pb2 as pb
from trinity.client import AsyncTasksets
from trinity.runtime.postgres import async_engine

TENANTS_SETS = "SELECT name, source FROM taskset WHERE tenant = %s"
ROWS = "SELECT count(*) FROM task WHERE tenant = %s"
NUM_ROWS = 600
AGED = (
    "UPDATE taskset SET created_at = created_at - interval '8 days' WHERE tenant = %s",
    "UPDATE taskset_upload SET last_sent_at = last_sent_at - interval '8 days' WHERE tenant = %s",
)
CHECK_SECONDS = 20.0


@pytest.fixture
def tenant(buffer: Buffer) -> str:
    own = f"t-{uuid.uuid4()}"
    buffer.key = replace(buffer.key, tenant=own)
    return own


async def clear_up(dsn: str) -> None:
    engine = async_engine(dsn, "buffer")
    database = BufferDatabase(engine)
    database.open()
    await delete_unused_tasksets(database)
    await engine.dispose()


def names(dsn: str, tenant: str) -> set[str]:
    with psycopg.connect(dsn) as connection:
        rows = connection.execute(TENANTS_SETS, [tenant]).fetchall()
    return {name or "a file" for name, _ in rows}


def age(dsn: str, tenant: str) -> None:
    with psycopg.connect(dsn) as connection:
        for query in AGED:
            connection.execute(query, [tenant])


async def cut_off(buffer: Buffer, tenant: str, dsn: str, request_id: str = "") -> None:
    """An upload that ends without a word after its first rows were stored."""
    call = buffer.stub.SubmitTaskset(timeout=60)
    header = pb.TasksetHeader(
        tenant=tenant, name="cut off", request_id=request_id or str(uuid.uuid4())
    )
    await call.write(pb.SubmitTasksetRequest(header=header))
    await call.write(pb.SubmitTasksetRequest(rows=pb.TaskRows(json=["{}"] * NUM_ROWS)))
    async with asyncio.timeout(CHECK_SECONDS):
        with psycopg.connect(dsn, autocommit=True) as connection:
            while connection.execute(ROWS, [tenant]).fetchone() == (0,):  # noqa: ASYNC110  # another
                await asyncio.sleep(0.02)
    call.cancel()


async def test_an_upload_that_stands_still_goes_and_one_that_is_whole_stays(
    process: BufferProcess, buffer: Buffer, shared_dsn: str, tenant: str
) -> None:
    await cut_off(buffer, tenant, shared_dsn)
    async with AsyncTasksets(process.address, tenant=tenant) as tasksets:
        await tasksets.submit("whole", [{"prompt": "1"}])
        await tasksets.submit("queue", [{"prompt": "1"}], is_queue=True)
    await clear_up(shared_dsn)
    assert names(shared_dsn, tenant) == {"cut off", "whole", "queue"}
    age(shared_dsn, tenant)
    await clear_up(shared_dsn)
    assert names(shared_dsn, tenant) == {"whole", "queue"}
    with psycopg.connect(shared_dsn) as connection:
        assert connection.execute(ROWS, [tenant]).fetchone() == (2,)


async def test_an_upload_goes_although_what_producers_were_told_stays(
    buffer: Buffer, shared_dsn: str, tenant: str, caplog: pytest.LogCaptureFixture
) -> None:
    await cut_off(buffer, tenant, shared_dsn)
    age(shared_dsn, tenant)
    fill_with_old_reports(shared_dsn, buffer.explorer_id)
    async with impatient_database(shared_dsn) as database:
        with held_old_report(shared_dsn, buffer.explorer_id):
            await clean_up_once(database)
    assert "old data could not be cleaned up yet" in caplog.messages
    assert names(shared_dsn, tenant) == set()


async def test_an_upload_that_was_begun_long_ago_and_goes_on_stays(
    buffer: Buffer, shared_dsn: str, tenant: str
) -> None:
    request_id = str(uuid.uuid4())
    await cut_off(buffer, tenant, shared_dsn, request_id)
    age(shared_dsn, tenant)
    header = pb.TasksetHeader(tenant=tenant, name="cut off", request_id=request_id)
    call = buffer.stub.SubmitTaskset(timeout=60)
    await call.write(pb.SubmitTasksetRequest(header=header))
    async with asyncio.timeout(CHECK_SECONDS):
        while is_still(shared_dsn, tenant):  # noqa: ASYNC110  # another process
            await asyncio.sleep(0.02)
    await clear_up(shared_dsn)
    assert names(shared_dsn, tenant) == {"cut off"}
    call.cancel()


def is_still(dsn: str, tenant: str) -> bool:
    """Whether no word came of the tenant's upload for a week."""
    old = "SELECT last_sent_at < now() - interval '7 days' FROM taskset_upload WHERE tenant = %s"
    with psycopg.connect(dsn) as connection:
        return connection.execute(old, [tenant]).fetchone() == (True,)


async def test_rows_of_a_file_stay_as_long_as_a_stage_takes_from_them(
    buffer: Buffer, shared_dsn: str, tenant: str, tmp_path: Path
) -> None:
    await buffer.open(rollout_plan(tmp_path))
    age(shared_dsn, tenant)
    await clear_up(shared_dsn)
    assert names(shared_dsn, tenant) == {"a file"}
    with psycopg.connect(shared_dsn) as connection:
        connection.execute("DELETE FROM stage_taskset WHERE tenant = %s", [tenant])
    await clear_up(shared_dsn)
    assert names(shared_dsn, tenant) == set()
