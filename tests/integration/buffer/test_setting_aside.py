"""Samples that a person takes out are never trained on, are counted, and stay to be seen."""

import asyncio
from pathlib import Path

import grpc
import pytest

from tests.integration.buffer.harness import Buffer
from tests.integration.buffer.looking import Looking
from tests.integration.buffer.made import Made
from tests.integration.buffer.plans import rollout_plan, with_advantage
from trinity.api.v1 import buffer_pb2
from trinity.api.v1 import query_pb2 as pb

EXCLUDED, DELETED = pb.EXPERIENCE_STATE_EXCLUDED, pb.EXPERIENCE_STATE_DELETED
READY, BATCHED = pb.EXPERIENCE_STATE_READY, pb.EXPERIENCE_STATE_BATCHED


async def ready_rows(buffer: Buffer, looking: Looking, tmp_path: Path) -> None:
    """The first explore step's rows, ready, of which a batch takes two."""
    await buffer.open(rollout_plan(tmp_path, train_batch_size=2, sync_offset=1))
    await buffer.begin()
    await buffer.record(0)
    await buffer.finish_all((await buffer.lease()).assignments[:3])
    await looking.until(6, pb.ExperienceFilter(states=[READY]))


async def trained_tasks(buffer: Buffer) -> list[int]:
    """Of the first two steps."""
    batches = [await buffer.batch(step) for step in (1, 2)]
    return [row.experience.task_index for _, rows in batches for row in rows]


def of_task(number: int) -> pb.ExperienceFilter:
    return pb.ExperienceFilter(task_index=number)


async def test_excluded_samples_are_never_trained_on_and_stay_to_be_seen(
    buffer: Buffer, looking: Looking, tmp_path: Path
) -> None:
    await ready_rows(buffer, looking, tmp_path)
    assert (await looking.exclude(of_task(1), "a bad task")).num_excluded == 2
    trained = [
        row.experience.task_index for step in (1, 2) for row in (await buffer.batch(step))[1]
    ]
    assert sorted(trained) == [0, 0, 2, 2]
    records = await looking.list(of_task(1))
    assert [(one.state, one.reason) for one in records] == [(EXCLUDED, "a bad task")] * 2
    [stage] = await looking.stages()
    assert (EXCLUDED, "a bad task", 2) in [(c.state, c.reason, c.count) for c in stage.counts]


async def test_a_dry_run_counts_and_changes_nothing(
    buffer: Buffer, looking: Looking, tmp_path: Path
) -> None:
    await ready_rows(buffer, looking, tmp_path)
    await buffer.batch(1)
    answer = await looking.exclude(pb.ExperienceFilter(reward_min=0.0), "why", dry_run=True)
    assert (answer.num_excluded, answer.num_batched) == (4, 2)
    assert await looking.list(pb.ExperienceFilter(states=[EXCLUDED])) == []


async def test_what_is_in_a_batch_stays_there_and_is_counted(
    buffer: Buffer, looking: Looking, tmp_path: Path
) -> None:
    await ready_rows(buffer, looking, tmp_path)
    _, before = await buffer.batch(1)
    answer = await looking.exclude(pb.ExperienceFilter(train_step=1), "too late")
    assert (answer.num_excluded, answer.num_batched) == (0, 2)
    assert (await buffer.batch(1))[1] == before


async def test_excluding_wakes_work_that_takes_the_place(
    buffer: Buffer, looking: Looking, tmp_path: Path
) -> None:
    """A step whose rows were excluded draws further tasks instead of waiting for ever."""
    await buffer.open(rollout_plan(tmp_path, train_batch_size=6))
    await buffer.begin()
    await buffer.record(0)
    first, *others = (await buffer.lease()).assignments
    await buffer.finish_all(others)
    await looking.until(4, pb.ExperienceFilter(states=[READY]))
    await looking.exclude(of_task(2), "a bad task")
    await buffer.finish_all([first])
    waiting = asyncio.ensure_future(buffer.batch(1, wait_seconds=30))
    await buffer.finish_all((await buffer.lease(wait_seconds=30)).assignments)
    head, rows = await waiting
    assert head.num_rows == 6
    assert 2 not in {row.experience.task_index for row in rows}


async def test_a_group_that_the_pipeline_works_on_is_shaped_without_what_was_excluded(
    buffer: Buffer, looking: Looking, tmp_path: Path
) -> None:
    plan = with_advantage(rollout_plan(tmp_path), "tests.integration.buffer.slow_advantage.slow")
    await buffer.open(plan)
    await buffer.begin()
    await buffer.record(0)
    work = (await buffer.lease()).assignments
    settling = asyncio.ensure_future(buffer.finish_all(work))
    await looking.until(6)
    await settling
    await looking.exclude(pb.ExperienceFilter(task_index=0, reward_min=1.0), "wrong")
    waiting = asyncio.ensure_future(buffer.batch(1, wait_seconds=30))
    await buffer.finish_all((await buffer.lease(wait_seconds=30)).assignments)
    _, rows = await waiting
    places = [(row.experience.task_index, row.experience.eid.run) for row in rows]
    assert (0, 1) not in places
    assert (0, 0) in places


async def test_deleted_samples_leave_their_row_without_content(
    buffer: Buffer, looking: Looking, tmp_path: Path
) -> None:
    await ready_rows(buffer, looking, tmp_path)
    assert (await looking.delete(of_task(1), "private data", dry_run=True)).num_deleted == 2
    answer = await looking.delete(of_task(1), "private data")
    assert answer.num_deleted == 2
    assert answer.num_bytes > 100
    records = await looking.list(of_task(1), with_content=True)
    assert [(one.state, one.reason) for one in records] == [(DELETED, "private data")] * 2
    assert not any(one.HasField("content") for one in records)
    for is_dry_run in (True, False):
        again = await looking.delete(of_task(1), "again", dry_run=is_dry_run)
        assert again.num_deleted == 0
    trained = [
        row.experience.task_index for step in (1, 2) for row in (await buffer.batch(step))[1]
    ]
    assert 1 not in trained


async def test_what_may_be_trained_again_cannot_be_deleted(
    buffer: Buffer, looking: Looking, tmp_path: Path
) -> None:
    await ready_rows(buffer, looking, tmp_path)
    await buffer.batch(1)
    wanted = pb.ExperienceFilter(reward_min=0.0)
    with pytest.raises(grpc.aio.AioRpcError, match="in the batch of step 1, which may be") as error:
        await looking.delete(wanted, "why")
    assert error.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert await looking.list(pb.ExperienceFilter(states=[DELETED])) == []
    await buffer.checkpoint(1)
    assert (await looking.delete(wanted, "why")).num_deleted == 6


async def test_once_training_has_finished_everything_can_be_deleted(
    buffer: Buffer, looking: Looking, tmp_path: Path
) -> None:
    await ready_rows(buffer, looking, tmp_path)
    await buffer.batch(1)
    await buffer.report(1)
    await buffer.record(1)
    await buffer.finish(1)
    wanted = pb.ExperienceFilter(train_step=1)
    assert (await looking.delete(wanted, "private data")).num_deleted == 2


async def test_nobody_is_told_the_text_of_deleted_samples(
    buffer: Buffer, looking: Looking, tmp_path: Path
) -> None:
    await ready_rows(buffer, looking, tmp_path)
    _, rows = await buffer.batch(1)
    told = (await buffer.events("samples"))[-1].samples
    assert [one.response for one in told.samples] == [rows[0].experience.sequence.response_text]
    await buffer.report(1)
    await buffer.record(1)
    await buffer.finish(1)
    await looking.delete(pb.ExperienceFilter(train_step=1), "private data")
    assert not (await buffer.events("samples"))[-1].samples.samples


async def test_nothing_is_taken_out_without_a_condition_and_a_reason(
    buffer: Buffer, looking: Looking, tmp_path: Path
) -> None:
    await buffer.open(rollout_plan(tmp_path))
    for wanted, reason, said in (
        (pb.ExperienceFilter(), "why", "give at least one condition"),
        (of_task(1), "", "say why"),
    ):
        for call in (looking.exclude, looking.delete):
            with pytest.raises(grpc.aio.AioRpcError, match=said) as error:
                await call(wanted, reason)
            assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT


async def test_an_evaluation_that_goes_on_keeps_its_samples(
    buffer: Buffer, looking: Looking, tmp_path: Path
) -> None:
    await buffer.open(rollout_plan(tmp_path, num_eval=2))
    await buffer.begin()
    await buffer.record(0)
    work = (await buffer.lease()).assignments
    first = next(one for one in work if one.kind == buffer_pb2.ASSIGNMENT_KIND_EVAL)
    await buffer.settle(buffer.complete(first, 0, Made()))
    wanted = pb.ExperienceFilter(kind=buffer_pb2.ASSIGNMENT_KIND_EVAL, reward_min=0.0)
    with pytest.raises(grpc.aio.AioRpcError, match="the evaluation of these samples goes on"):
        await looking.delete(wanted, "why")
