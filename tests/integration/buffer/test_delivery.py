"""From the stream into the database: once, whole, and told to who sent it."""

import asyncio
import uuid
from pathlib import Path
from typing import LiteralString

import psycopg
import pytest
import sqlalchemy as sa
from grpc_health.v1 import health_pb2
from nats.js.errors import APIError
from psycopg import sql

from services.buffer.store.reports import delete_old_reports
from tests.integration.buffer.harness import Buffer, talk_to
from tests.integration.buffer.impatient import impatient_database
from tests.integration.buffer.made import Made
from tests.integration.buffer.old_reports import (
    NUM_OLD_REPORTS,
    count_reports,
    fill_with_old_reports,
    held_old_report,
)
from tests.integration.buffer.plans import ROWS, rollout_plan
from tests.integration.buffer.process import BufferProcess
from tests.support.infra_fixtures import NatsUnderTest
from trinity.api.v1 import buffer_pb2 as pb
from trinity.errors import Unavailable
from trinity.runtime.postgres import async_engine
from trinity.runtime.sql import transaction

Report = pb.CommitReport


async def leased(buffer: Buffer, tmp_path: Path) -> list[pb.Assignment]:
    """The first explore step's assignments."""
    await buffer.open(rollout_plan(tmp_path))
    await buffer.begin()
    await buffer.record(0)
    return list((await buffer.lease()).assignments)


def count(dsn: str, table: LiteralString, buffer: Buffer) -> int:
    """Rows of this experiment in a table."""
    query = sql.SQL("SELECT count(*) FROM {} WHERE experiment_id = %s").format(
        sql.Identifier("buffer", table)
    )
    with psycopg.connect(dsn) as connection:
        row = connection.execute(query, [buffer.key.experiment_id]).fetchone()
    assert row is not None
    return int(row[0])


async def test_what_is_delivered_many_times_is_stored_once(
    buffer: Buffer, shared_dsn: str, tmp_path: Path
) -> None:
    assignments = await leased(buffer, tmp_path)
    results = [buffer.complete(one, run) for one in assignments for run in one.runs]
    for _ in range(4):
        await buffer.publish(*results)
    for result in reversed(results):
        await buffer.publish(result, result)
    reports = await buffer.settle(*results)
    assert {report.state for report in reports} == {Report.STATE_COMMITTED}
    assert (await buffer.batch(1))[0].num_rows == ROWS
    assert count(shared_dsn, "payload", buffer) == ROWS
    assert count(shared_dsn, "run_attempt", buffer) == ROWS
    assert (await buffer.status()).num_dead_letters == 0


async def test_the_first_complete_attempt_wins(buffer: Buffer, tmp_path: Path) -> None:
    first, *others = await leased(buffer, tmp_path)
    await buffer.settle(buffer.complete(first, 0, Made(reward=3.0), attempt=1))
    [second] = await buffer.settle(buffer.complete(first, 0, Made(reward=9.0), attempt=0))
    assert second.state == Report.STATE_SUPERSEDED
    await buffer.settle(buffer.complete(first, 1))
    await buffer.finish_all(others)
    _, rows = await buffer.batch(1)
    assert len(rows) == ROWS
    assert (rows[0].experience.reward, rows[0].experience.eid.attempt) == (3.0, 1)


async def test_another_content_under_the_same_attempt_is_refused(
    buffer: Buffer, tmp_path: Path
) -> None:
    first, *_ = await leased(buffer, tmp_path)
    await buffer.settle(buffer.complete(first, 0, Made(reward=1.0)))
    [report] = await buffer.settle(buffer.complete(first, 0, Made(reward=2.0)))
    assert report.state == Report.STATE_REJECTED
    assert "same attempt" in report.reason


async def test_poison_is_put_away_and_the_run_goes_on(buffer: Buffer, tmp_path: Path) -> None:
    first, *others = await leased(buffer, tmp_path)
    jetstream = buffer.broker.jetstream()
    await jetstream.publish(buffer.subject, b"\xff\xff not a message")
    await jetstream.publish("trinity.runs.x", b"")
    wrong_id = buffer.complete(first, 0)
    wrong_id.experiences[0].id = str(uuid.uuid4())
    not_a_number = buffer.complete(first, 0, Made(reward=float("nan")))
    short = buffer.complete(first, 0)
    short.experiences[0].sequence.tokens.data = b"1234"
    elsewhere = buffer.complete(first, 0)
    elsewhere.stage = "another"
    nowhere = buffer.complete(first, 0)
    nowhere.assignment_id = str(uuid.uuid4())
    del nowhere.experiences[:]
    null_byte = buffer.complete(first, 0, metrics={"a\x00b": 1.0})
    bad = [wrong_id, not_a_number, short, elsewhere, nowhere]
    reports = await buffer.settle(*bad, buffer.complete(first, 1))
    assert [report.state for report in reports[:-1]] == [Report.STATE_REJECTED] * len(bad)
    assert all(report.reason for report in reports[:-1])
    assert reports[-1].state == Report.STATE_COMMITTED
    assert (await buffer.settle(null_byte))[0].state == Report.STATE_COMMITTED
    await buffer.finish_all(others)
    assert (await buffer.batch(1))[0].num_rows == ROWS
    assert (await buffer.status()).num_dead_letters == 1 + len(bad)
    assert (await buffer.status()).num_stream_pending == 0


async def test_a_run_whose_results_are_refused_ends_with_the_failures_sent_in_their_place(
    buffer: Buffer, tmp_path: Path
) -> None:
    first, *others = await leased(buffer, tmp_path)
    for attempt in (0, 2):
        bad = buffer.complete(first, 0, attempt=attempt)
        bad.experiences[0].version_spans[0].end = 2
        [refused] = await buffer.settle(bad)
        assert refused.state == Report.STATE_REJECTED
        assert refused.reason == "version_spans end at 2, the response has 3 tokens"
        [counted] = await buffer.settle(buffer.fail(first, 0, attempt + 1, refused.reason))
        assert counted.state == Report.STATE_COMMITTED
    [late] = await buffer.settle(buffer.complete(first, 0, attempt=4))
    assert late.state == Report.STATE_LATE
    await buffer.settle(buffer.complete(first, 1))
    await buffer.finish_all(others)
    waiting = asyncio.ensure_future(buffer.batch(1))
    [refill] = (await buffer.lease()).assignments
    await buffer.finish_all([refill])
    assert (await waiting)[0].num_rows == ROWS


async def test_a_full_stream_refuses_results_and_loses_none(
    buffer_dsn: str, nats_url: str, tmp_path: Path
) -> None:
    extra = {"TRINITY_BUFFER_STREAM_MAX_BYTES": "4096"}
    async with (
        BufferProcess(buffer_dsn, nats_url, tmp_path / "buffer.log", extra) as process,
        talk_to(process) as buffer,
    ):
        assignments = await leased(buffer, tmp_path)
        results = [buffer.complete(one, run) for one in assignments for run in one.runs]
        process.kill()
        refused = []
        for result in results * 2:
            try:
                await buffer.publish(result)
            except APIError as error:
                assert "maximum bytes exceeded" in str(error)
                refused.append(result)
        assert 0 < len(refused) < len(results) * 2
        process.extra["TRINITY_BUFFER_STREAM_MAX_BYTES"] = "1000000"
        await process.start()
        await buffer.publish(*refused)
        fates = await buffer.fates(*(result.sequence for result in results))
        assert {fate.state for fate in fates.values()} == {Report.STATE_COMMITTED}


async def test_a_producer_is_told_of_the_results_it_names_and_of_later_ones(
    buffer: Buffer, tmp_path: Path
) -> None:
    await leased(buffer, tmp_path)
    number = 1_200
    strangers = [buffer.fail(pb.Assignment(id=str(uuid.uuid4())), 0, 0) for _ in range(number)]
    for start in range(0, number, 400):
        await buffer.publish(*strangers[start : start + 400])
    known = await buffer.fates(*range(1, number + 1))
    assert len(known) == number
    assert await buffer.watched() == []
    assert [one.sequence for one in await buffer.watched(7, number - 1)] == [7, number - 1, number]


async def test_what_producers_were_told_long_ago_is_forgotten_and_told_again_when_asked(
    buffer: Buffer, shared_dsn: str, tmp_path: Path
) -> None:
    first, second, _ = await leased(buffer, tmp_path)
    results = [buffer.complete(first, 0), buffer.complete(second, 0)]
    await buffer.settle(*results)
    engine = async_engine(shared_dsn, "buffer")
    async with transaction(engine, None) as connection:
        aged = sa.text(
            "UPDATE commit_report SET reported_at = now() - interval '2 days'"
            " WHERE producer = :producer AND sequence = 1"
        )
        await connection.execute(aged, {"producer": buffer.explorer_id})
        await delete_old_reports(connection)
    await engine.dispose()
    assert [one.sequence for one in await buffer.watched(1, 2)] == [2]
    [told] = await buffer.settle(results[0])
    assert told.state == Report.STATE_COMMITTED


async def test_what_can_be_forgotten_is_although_all_of_it_takes_too_long(
    process: BufferProcess, buffer: Buffer
) -> None:
    """Somebody holds the last of many old reports: all before it go nevertheless."""
    fill_with_old_reports(process.dsn, buffer.explorer_id)
    async with impatient_database(process.dsn) as database:
        with held_old_report(process.dsn, buffer.explorer_id), pytest.raises(Unavailable):
            async with database.autocommit() as connection:
                await delete_old_reports(connection)
        assert 0 < count_reports(process.dsn, buffer.explorer_id) < NUM_OLD_REPORTS
        async with database.autocommit() as connection:
            await delete_old_reports(connection)
    assert count_reports(process.dsn, buffer.explorer_id) == 0


async def test_a_large_result_travels_as_a_blob_that_is_taken_out_with_it(
    buffer: Buffer, shared_dsn: str, tmp_path: Path
) -> None:
    first, *_ = await leased(buffer, tmp_path)
    result = buffer.complete(first, 0, Made(num_tokens=400_000))
    body = buffer.batch_of([result])
    assert len(body) > 2 * 1024 * 1024
    digest = await buffer.upload(body)
    assert await buffer.upload(body) == digest
    await buffer.publish_reference(digest)
    known = await buffer.fates(result.sequence)
    assert known[result.sequence].state == Report.STATE_COMMITTED
    with psycopg.connect(shared_dsn) as connection:
        rows = connection.execute("SELECT body FROM buffer.blob WHERE sha256 = %s", [digest])
        assert rows.fetchall() == [(None,)]
    await buffer.publish_reference(digest)
    await buffer.upload(body)
    await buffer.publish_reference(digest)
    [after] = await buffer.settle(buffer.complete(first, 1))
    assert after.state == Report.STATE_COMMITTED
    assert (await buffer.status()).num_dead_letters == 0
    await buffer.publish_reference(b"\x00" * 32)
    await buffer.settle(buffer.fail(first, 1, 1))
    assert (await buffer.status()).num_dead_letters == 1


async def test_what_is_too_large_for_a_message_is_refused_by_the_broker(
    buffer: Buffer, tmp_path: Path
) -> None:
    first, *_ = await leased(buffer, tmp_path)
    with pytest.raises(APIError, match="message size exceeds maximum allowed"):
        await buffer.publish(buffer.complete(first, 0, Made(num_tokens=120_000)))


async def test_a_run_that_keeps_failing_is_given_up_and_later_results_are_late(
    buffer: Buffer, tmp_path: Path
) -> None:
    first, *_ = await leased(buffer, tmp_path)
    reports = await buffer.settle(
        buffer.fail(first, 0, 0),
        buffer.fail(first, 0, 1, "no memory"),
        buffer.complete(first, 0, attempt=2),
        buffer.complete(first, 1),
    )
    assert [report.state for report in reports] == [
        Report.STATE_COMMITTED,
        Report.STATE_COMMITTED,
        Report.STATE_LATE,
        Report.STATE_COMMITTED,
    ]


async def test_results_sent_while_the_buffer_is_dead_are_stored_when_it_is_back(
    own_buffer: Buffer, own_process: BufferProcess, tmp_path: Path
) -> None:
    assignments = await leased(own_buffer, tmp_path)
    results = [own_buffer.complete(one, run) for one in assignments for run in one.runs]
    own_process.kill()
    await own_buffer.publish(*results[:3])
    await own_buffer.publish(*results[3:])
    await own_process.start()
    fates = await own_buffer.fates(*(result.sequence for result in results))
    assert {fate.state for fate in fates.values()} == {Report.STATE_COMMITTED}
    assert (await own_buffer.batch(1))[0].num_rows == ROWS


async def test_the_buffer_takes_its_place_again_when_the_broker_comes_back_empty(
    own_buffer: Buffer, own_process: BufferProcess, nats_server: NatsUnderTest, tmp_path: Path
) -> None:
    assignments = await leased(own_buffer, tmp_path)
    nats_server.kill()
    await own_process.wait_state(health_pb2.HealthCheckResponse.NOT_SERVING)
    await nats_server.start()
    await own_process.wait_state(health_pb2.HealthCheckResponse.SERVING)
    await own_buffer.finish_all(assignments)
    assert (await own_buffer.batch(1))[0].num_rows == ROWS
