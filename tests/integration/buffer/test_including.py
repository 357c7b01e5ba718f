"""What a person excluded may be trained on after all, as long as it is not too late."""

import asyncio
from pathlib import Path

import grpc
import psycopg
import pytest

from tests.integration.buffer.harness import Buffer
from tests.integration.buffer.looking import Looking
from tests.integration.buffer.made import Made
from tests.integration.buffer.plans import rollout_plan
from trinity.api.v1 import buffer_pb2
from trinity.api.v1 import query_pb2 as pb

READY = pb.EXPERIENCE_STATE_READY
EXCLUDED = pb.EXPERIENCE_STATE_EXCLUDED
AWAITING = pb.EXPERIENCE_STATE_AWAITING
DONE = pb.IncludeExperiencesResponse


def of_task(number: int) -> pb.ExperienceFilter:
    return pb.ExperienceFilter(task_index=number)


async def lease_three(
    buffer: Buffer, tmp_path: Path, **settings: object
) -> list[buffer_pb2.Assignment]:
    plan = rollout_plan(tmp_path, train_batch_size=2, sync_offset=1, **settings)  # type: ignore[arg-type]
    await buffer.open(plan)
    await buffer.begin()
    await buffer.record(0)
    return list((await buffer.lease()).assignments[:3])


async def trained_tasks(buffer: Buffer, steps: int) -> list[int]:
    batches = [await buffer.batch(step) for step in range(1, steps + 1)]
    return sorted(row.experience.task_index for _, rows in batches for row in rows)


async def test_what_was_ready_is_ready_again(
    buffer: Buffer, looking: Looking, tmp_path: Path
) -> None:
    await buffer.finish_all(await lease_three(buffer, tmp_path))
    await looking.until(6, pb.ExperienceFilter(states=[READY]))
    known = {one.id: one.advantage for one in await looking.list()}
    await looking.exclude(pb.ExperienceFilter(reward_min=0.0), "a mistake")
    assert await looking.include(of_task(1), dry_run=True) == DONE(num_included=2)
    assert len(await looking.list(pb.ExperienceFilter(states=[EXCLUDED]))) == 6
    assert await looking.include(of_task(1)) == DONE(num_included=2)
    assert await looking.include(of_task(1)) == DONE()
    await looking.include(of_task(0))
    assert await trained_tasks(buffer, 2) == [0, 0, 1, 1]
    again = [one for task in (0, 1) for one in await looking.list(of_task(task))]
    assert {one.id: one.advantage for one in again}.items() <= known.items()


async def test_a_group_that_went_as_a_whole_is_shaped_again(
    buffer: Buffer, looking: Looking, tmp_path: Path
) -> None:
    """Its samples were taken out while their rewards were awaited, before any had an advantage."""
    one, *_ = await lease_three(buffer, tmp_path, await_feedback=True)
    await buffer.settle(*(buffer.complete(one, run, Made(reward=None)) for run in (0, 1)))
    await looking.until(2, pb.ExperienceFilter(states=[AWAITING]))
    await looking.exclude(of_task(0), "nobody will judge them")
    waiting = asyncio.ensure_future(looking.until(2, pb.ExperienceFilter(states=[AWAITING])))
    assert await looking.include(of_task(0)) == DONE(num_included=2)
    await waiting


async def test_a_sample_whose_group_was_shaped_without_it_stays_out(
    buffer: Buffer, looking: Looking, tmp_path: Path
) -> None:
    one, *_ = await lease_three(buffer, tmp_path, await_feedback=True)
    await buffer.settle(
        buffer.complete(one, 0, Made(reward=1.0)),
        buffer.complete(one, 1, Made(reward=None)),
    )
    await looking.until(1, pb.ExperienceFilter(states=[AWAITING]))
    wanted = pb.ExperienceFilter(states=[AWAITING])
    await looking.exclude(wanted, "nobody will judge it")
    await looking.until(1, pb.ExperienceFilter(states=[READY]))
    assert await looking.include(of_task(0)) == DONE(num_too_late=1)


async def test_nothing_is_included_without_a_condition_or_once_the_stage_has_ended(
    buffer: Buffer, looking: Looking, tmp_path: Path
) -> None:
    await buffer.finish_all(await lease_three(buffer, tmp_path))
    await looking.until(6, pb.ExperienceFilter(states=[READY]))
    await looking.exclude(of_task(1), "a bad task")
    with pytest.raises(grpc.aio.AioRpcError, match="give at least one condition"):
        await looking.include(pb.ExperienceFilter())
    with pytest.raises(grpc.aio.AioRpcError, match="only excluded samples can be included"):
        await looking.include(pb.ExperienceFilter(states=[READY]))
    await buffer.cancel("enough")
    assert await looking.include(of_task(1)) == DONE(num_too_late=2)


async def test_what_has_no_content_any_more_stays_out(
    buffer: Buffer, looking: Looking, tmp_path: Path, shared_dsn: str
) -> None:
    await buffer.finish_all(await lease_three(buffer, tmp_path))
    await looking.until(6, pb.ExperienceFilter(states=[READY]))
    await looking.exclude(of_task(1), "a bad task")
    with psycopg.connect(shared_dsn) as connection:
        connection.execute(
            "UPDATE buffer.segment SET retired_at = now() WHERE experiment_id = %s",
            [buffer.key.experiment_id],
        )
    assert await looking.include(of_task(1)) == DONE(num_too_late=2)
