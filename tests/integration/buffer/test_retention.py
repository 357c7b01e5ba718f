"""Contents that nobody can need any more are removed by the partition; all else stays."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import grpc
import psycopg
import pytest

from tests.integration.buffer.calls import CALL_SECONDS
from tests.integration.buffer.harness import Buffer, talk_to
from tests.integration.buffer.looking import Looking
from tests.integration.buffer.made import Made
from tests.integration.buffer.plans import ROWS, Sizes, rollout_plan
from tests.integration.buffer.process import BufferProcess
from tests.integration.buffer.test_feedback import give, reward
from tests.integration.buffer.test_retraining import Recorded
from tests.integration.buffer.test_sessions import settle, stored, turn_of
from trinity.api.v1 import query_pb2 as pb
from trinity.api.v1.buffer_pb2 import BatchHead
from trinity.config.plan.stage_plan import StagePlan
from trinity.runtime.rpc.channel import open_channel

READY = BatchHead.STATE_READY
WANTED: Sizes = {"num_tasks": 60, "total_steps": 12}
IS_THERE = "SELECT to_regclass('payload_' || %s) IS NOT NULL"
SEGMENTS = "SELECT segment_id FROM segment WHERE experiment_id = %s ORDER BY segment_id"
REMOVED = "SELECT count(*) FROM segment WHERE experiment_id = %s AND removed_at IS NOT NULL"


@pytest.fixture
def own_process(retaining_process: BufferProcess) -> BufferProcess:
    """One for all tests here: what is in it of one of them is nothing to the others."""
    return retaining_process


@pytest.fixture
async def looking(own_process: BufferProcess, own_buffer: Buffer) -> AsyncIterator[Looking]:
    async with open_channel(own_process.address) as channel:
        yield Looking.on(channel, own_buffer.pb_key)


async def begin(buffer: Buffer, plan: StagePlan) -> None:
    await buffer.open(plan)
    await buffer.begin()
    await buffer.record(0)


async def train(buffer: Buffer, step: int, *, saved: bool = True) -> None:
    """One step from its work to its checkpoint; of those the plan keeps two."""
    await buffer.finish_all((await buffer.lease()).assignments)
    await buffer.batch(step)
    await buffer.report(step)
    await buffer.record(step)
    if saved:
        await buffer.checkpoint(step)


def there(process: BufferProcess, buffer: Buffer) -> list[int]:
    """Places of the partitions that are there, from the first that was ever made."""
    with psycopg.connect(process.dsn) as connection:
        made = connection.execute(SEGMENTS, [buffer.key.experiment_id]).fetchall()
        return [
            place
            for place, (segment_id,) in enumerate(made, start=1)
            if (connection.execute(IS_THERE, [segment_id]).fetchone() or (None,))[0]
        ]


async def removed(process: BufferProcess, buffer: Buffer, number: int) -> None:
    """Return when so many of a stage's partitions are removed, or more."""
    async with asyncio.timeout(CALL_SECONDS):
        with psycopg.connect(process.dsn, autocommit=True) as connection:
            while True:
                row = connection.execute(REMOVED, [buffer.key.experiment_id]).fetchone()
                if row is not None and row[0] >= number:
                    return
                await asyncio.sleep(0.02)


async def test_what_lies_before_the_oldest_kept_checkpoint_goes_and_its_rows_stay(
    own_process: BufferProcess, own_buffer: Buffer, looking: Looking, tmp_path: Path
) -> None:
    await begin(own_buffer, rollout_plan(tmp_path, keep_steps=0, **WANTED))
    for step in range(1, 7):
        await train(own_buffer, step)
    await removed(own_process, own_buffer, 5)
    assert there(own_process, own_buffer) == [6, 7]
    records = await looking.list(with_content=True)
    assert len(records) == 6 * ROWS
    gone = [one for one in records if not one.HasField("content")]
    assert {one.uses[0].step for one in gone} == {1, 2, 3, 4, 5}
    assert {one.state for one in records} == {pb.EXPERIENCE_STATE_BATCHED}
    said = "removed as older than all that is kept (`buffer.keep_steps: 0`)"
    assert {one.content_removed for one in gone} == {said}
    assert (await looking.get(gone[0].id)).experience.content_removed == said
    _, rows = await looking.step(1)
    assert len(rows) == ROWS


async def test_a_partition_is_full_by_its_bytes_too(
    own_process: BufferProcess, own_buffer: Buffer, tmp_path: Path
) -> None:
    own_process.kill()
    own_process.extra = {"TRINITY_BUFFER_SEGMENT_MAX_BYTES": "1"}
    await own_process.start()
    await begin(own_buffer, rollout_plan(tmp_path, **WANTED))
    await train(own_buffer, 1)
    assert there(own_process, own_buffer) == [1, 2]


async def test_a_resume_from_the_oldest_kept_checkpoint_gets_every_batch_after_it(
    own_process: BufferProcess, own_buffer: Buffer, tmp_path: Path
) -> None:
    await begin(own_buffer, rollout_plan(tmp_path, keep_steps=0, **WANTED))
    batches = {}
    for step in range(1, 8):
        await train(own_buffer, step, saved=step in (2, 4))
        if step > 2:  # those before may be gone at any time
            batches[step] = (await own_buffer.batch(step))[1]
    await removed(own_process, own_buffer, 2)
    own_process.kill()
    await own_process.start()
    begun = await own_buffer.begin()
    assert [one.step for one in begun.checkpoints] == [4, 2]
    for step in range(3, 8):
        assert (await own_buffer.batch(step))[1] == batches[step]
    with pytest.raises(grpc.aio.AioRpcError, match=r"contents of 6 samples .*`buffer.keep_steps`"):
        await own_buffer.batch(1)


@pytest.mark.parametrize(("keep_steps", "kept"), [(None, 8), (3, 4), (100, 8)])
async def test_steps_are_kept_as_it_was_asked_for(
    own_process: BufferProcess,
    own_buffer: Buffer,
    tmp_path: Path,
    keep_steps: int | None,
    kept: int,
) -> None:
    other = replace(own_buffer.key, tenant="other")
    await begin(own_buffer, rollout_plan(tmp_path, keep_steps=keep_steps, **WANTED))
    for step in range(1, 8):
        await train(own_buffer, step)
    async with talk_to(own_process) as neighbour:
        neighbour.key = replace(neighbour.key, tenant=other.tenant)
        await begin(neighbour, rollout_plan(tmp_path, keep_steps=0, **WANTED))
        for step in range(1, 5):
            await train(neighbour, step)
        await removed(own_process, neighbour, 3)
    await removed(own_process, own_buffer, 8 - kept)
    assert len(there(own_process, own_buffer)) == kept


async def test_a_sample_whose_reward_is_awaited_keeps_its_content(
    own_process: BufferProcess, own_buffer: Buffer, looking: Looking, tmp_path: Path
) -> None:
    sizes: Sizes = {**WANTED, "keep_steps": 0, "sync_offset": 1, "await_feedback": True}
    plan = rollout_plan(tmp_path, **sizes)
    await begin(own_buffer, plan)
    awaited, *others = (await own_buffer.lease()).assignments
    await own_buffer.settle(
        own_buffer.complete(awaited, 0, Made(reward=None)),
        own_buffer.complete(awaited, 1, Made(reward=1.0)),
    )
    await own_buffer.finish_all(others)
    for step in range(1, 6):
        while (await own_buffer.batch(step, wait_seconds=0.2))[0].state != READY:
            await own_buffer.finish_all((await own_buffer.lease(wait_seconds=0.2)).assignments)
        await own_buffer.report(step)
        await own_buffer.record(step)
        await own_buffer.checkpoint(step)
    await removed(own_process, own_buffer, 1)
    assert 1 in there(own_process, own_buffer)
    [waiting] = await looking.list(pb.ExperienceFilter(states=[pb.EXPERIENCE_STATE_AWAITING]))
    assert (await give(looking, reward(waiting, 0.5))).num_set == 1


async def test_batches_that_are_trained_again_keep_their_contents_until_that_is_over(
    own_process: BufferProcess, own_buffer: Buffer, tmp_path: Path
) -> None:
    plan = rollout_plan(tmp_path, keep_steps=0, **WANTED)
    await begin(own_buffer, plan)
    for step in (1, 2):
        await train(own_buffer, step, saved=False)
    source = Recorded(own_buffer, plan, [])
    async with talk_to(own_process, stage="again") as again:
        await again.open(source.stored(1, 2))
        await again.begin()
        for step in range(3, 7):
            await train(own_buffer, step)
        await removed(own_process, own_buffer, 3)
        assert there(own_process, own_buffer) == [1, 2, 6, 7]
        assert len((await again.batch(1))[1]) == ROWS
        await again.cancel("enough")
        await train(own_buffer, 7)
        await removed(own_process, own_buffer, 6)
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await again.open(source.stored(1, 2))
    assert error.value.details() == (
        "the contents of 12 samples of the batches of steps 1..2 were removed "
        "(`buffer.keep_steps: 0`): choose steps from 3 on"
    )


@pytest.mark.parametrize("how", ["", "DETACH PARTITION {} CONCURRENTLY"])
async def test_a_removal_that_was_cut_off_is_done_by_the_next_process(
    own_process: BufferProcess, own_buffer: Buffer, tmp_path: Path, how: str
) -> None:
    await begin(own_buffer, rollout_plan(tmp_path, **WANTED))
    for step in range(1, 4):
        await train(own_buffer, step)
    own_process.kill()
    with psycopg.connect(own_process.dsn, autocommit=True) as connection:
        (first, *_) = connection.execute(SEGMENTS, [own_buffer.key.experiment_id]).fetchall()
        query = "UPDATE segment SET retired_at = clock_timestamp() WHERE segment_id = %s"
        connection.execute(query, first)
        if how:
            connection.execute(f"ALTER TABLE payload {how.format(f'payload_{first[0]}')}")
    await own_process.start()
    await removed(own_process, own_buffer, 1)
    assert there(own_process, own_buffer) == [2, 3, 4]


async def test_a_removal_that_waits_for_a_reader_stands_in_nobodys_way(
    own_process: BufferProcess, own_buffer: Buffer, tmp_path: Path
) -> None:
    await begin(own_buffer, rollout_plan(tmp_path, keep_steps=0, **WANTED))
    with psycopg.connect(own_process.dsn) as reader:
        for step in range(1, 6):
            await train(own_buffer, step)
            if step == 1:
                reader.execute("SELECT count(*) FROM payload")
        assert there(own_process, own_buffer) == [1, 2, 3, 4, 5, 6]
    await removed(own_process, own_buffer, 4)


async def test_turns_of_a_run_that_goes_on_stay(
    own_process: BufferProcess, own_buffer: Buffer, tmp_path: Path
) -> None:
    late: Sizes = {**WANTED, "sync_offset": 1}
    await begin(own_buffer, rollout_plan(tmp_path, keep_steps=0, **late))
    going_on, *others = (await own_buffer.lease()).assignments
    asked = turn_of(own_buffer, going_on)
    await settle(own_buffer, asked)
    await own_buffer.finish_all(others)
    for step in range(1, 7):
        leased = (await own_buffer.lease()).assignments
        await own_buffer.finish_all([own for own in leased if own.id != going_on.id])
        await own_buffer.batch(step)
        await own_buffer.report(step)
        await own_buffer.record(step)
        await own_buffer.checkpoint(step)
    await removed(own_process, own_buffer, 3)
    assert 1 in there(own_process, own_buffer)
    assert [turn.payload for turn in await stored(own_buffer, going_on)] == [asked.payload]
