"""Batches: what is in them, in which order, and that they never change."""

import json
import random
from pathlib import Path

import grpc
import pytest

from tests.integration.buffer.harness import Buffer, talk_to
from tests.integration.buffer.made import Made
from tests.integration.buffer.plans import ROWS, data_plan, rollout_plan
from tests.integration.buffer.process import BufferProcess
from trinity.api.v1 import buffer_pb2 as pb
from trinity.types import FinishReason


async def ready(buffer: Buffer) -> None:
    """A trainer has begun and published the starting weights."""
    await buffer.begin()
    await buffer.record(0)


async def test_a_stage_goes_from_lease_to_batch(buffer: Buffer, tmp_path: Path) -> None:
    opened = await buffer.open(rollout_plan(tmp_path))
    assert (opened.num_tasks, opened.total_explore_steps, opened.total_train_steps) == (12, 4, 4)
    await ready(buffer)
    work = await buffer.lease()
    assert work.state == pb.LeaseAssignmentsResponse.STATE_GRANTED
    assert [one.position for one in work.assignments] == [0, 1, 2]
    assert json.loads(work.assignments[1].task_json) == {"prompt": "1+1=", "response": "2"}
    await buffer.finish_all(work.assignments)
    head, rows = await buffer.batch(1)
    assert head.state == pb.BatchHead.STATE_READY
    assert head.num_rows == len(rows) == ROWS
    assert [round(row.advantage, 3) for row in rows] == [-0.707, 0.707] * 3
    assert head.metrics["reward/mean"] == 0.5
    assert head.metrics["rollout/accuracy/mean"] == 0.5
    assert head.metrics["num_groups"] == 3


async def test_a_batch_never_changes(buffer: Buffer, tmp_path: Path) -> None:
    await buffer.open(rollout_plan(tmp_path, sync_offset=1))
    await ready(buffer)
    work = await buffer.lease()
    assert len(work.assignments) == 6
    await buffer.finish_all(work.assignments[:3])
    first = await buffer.batch(1)
    await buffer.finish_all(work.assignments[3:])
    assert await buffer.batch(1) == first
    await buffer.begin()
    head, rows = await buffer.batch(1)
    assert head.replayed and not first[0].replayed
    assert rows == first[1]


async def test_ordered_batches_do_not_depend_on_the_order_of_arrival(
    process: BufferProcess, tmp_path: Path
) -> None:
    plan = rollout_plan(tmp_path)
    seen = []
    for seed in range(2):
        async with talk_to(process) as buffer:
            await buffer.open(plan)
            await ready(buffer)
            assignments = list((await buffer.lease()).assignments)
            runs = [(one, run) for one in assignments for run in one.runs]
            random.Random(seed).shuffle(runs)
            for one, run in runs:
                await buffer.settle(buffer.complete(one, run, Made(reward=float(run)), Made()))
            _, rows = await buffer.batch(1)
            seen.append([row.experience.sequence.response_text for row in rows])
    assert seen[0] == seen[1]
    assert seen[0] == ["1/0/0", "1/0/0", "1/0/1", "1/0/1", "1/1/0", "1/1/0"]


async def test_an_ordered_batch_waits_for_what_comes_before_it(
    buffer: Buffer, tmp_path: Path
) -> None:
    await buffer.open(rollout_plan(tmp_path, train_batch_size=2))
    await ready(buffer)
    first, second, third = (await buffer.lease()).assignments
    await buffer.finish_all([second, third])
    head, _ = await buffer.batch(1, wait_seconds=0)
    assert head.state == pb.BatchHead.STATE_WAITING
    assert head.reason == (
        f"explore step 1: 1 of 3 assignments still open, held by explorer {buffer.explorer_id}"
    )
    await buffer.finish_all([first])
    _, rows = await buffer.batch(1)
    assert [row.experience.sequence.response_text for row in rows] == ["1/0/0", "1/0/1"]


async def test_with_an_offset_rows_go_as_they_become_ready(buffer: Buffer, tmp_path: Path) -> None:
    await buffer.open(rollout_plan(tmp_path, train_batch_size=2, sync_offset=1))
    await ready(buffer)
    assignments = (await buffer.lease()).assignments
    await buffer.finish_all([assignments[2]])
    _, rows = await buffer.batch(1)
    assert [row.experience.eid.position for row in rows] == [2, 2]


async def test_a_step_cannot_be_skipped(buffer: Buffer, tmp_path: Path) -> None:
    await buffer.open(rollout_plan(tmp_path))
    await ready(buffer)
    with pytest.raises(grpc.aio.AioRpcError, match="the next one to compose is 1") as error:
        await buffer.batch(2)
    assert error.value.code() == grpc.StatusCode.FAILED_PRECONDITION


async def test_aborted_samples_never_train_and_truncated_prompts_count_as_zero(
    buffer: Buffer, tmp_path: Path
) -> None:
    await buffer.open(rollout_plan(tmp_path, total_steps=1))
    await ready(buffer)
    first, second, third = (await buffer.lease()).assignments
    truncated = Made(reward=None, finish_reason=FinishReason.PROMPT_TRUNCATED)
    aborted = Made(reward=5.0, finish_reason=FinishReason.ABORT)
    await buffer.settle(
        buffer.complete(first, 0, truncated),
        buffer.complete(first, 1, Made(reward=1.0)),
        buffer.complete(second, 0, aborted),
        buffer.complete(second, 1, Made(reward=1.0)),
    )
    await buffer.finish_all([third])
    head, _ = await buffer.batch(1, wait_seconds=1)
    assert head.state == pb.BatchHead.STATE_WAITING
    refill = (await buffer.lease()).assignments
    assert [(one.explore_step, one.position) for one in refill] == [(1, 3)]
    await buffer.finish_all(refill)
    _, rows = await buffer.batch(1)
    assert len(rows) == ROWS
    assert round(rows[0].advantage, 3) == -0.707
    reasons = {row.experience.finish_reason for row in rows}
    assert reasons == {1, 4}
    alone = next(row for row in rows if row.experience.eid.position == 1)
    assert round(alone.advantage, 3) == 1.0
    notices = [event.notice.text for event in await buffer.events("notice")]
    [named] = [text for text in notices if "longer than `model.max_prompt_tokens" in text]
    assert "1 of 6 rows" in named and "the first that of task " in named


async def test_data_rows_are_drawn_once_an_epoch_by_seed(
    process: BufferProcess, tmp_path: Path
) -> None:
    plan = data_plan(tmp_path)
    seen = []
    for seed in (7, 7, 8):
        async with talk_to(process, "warmup") as buffer:
            opened = await buffer.open(plan, seed)
            assert (opened.num_tasks, opened.total_train_steps) == (10, 2)
            await buffer.begin()
            rows = [row for step in (1, 2) for row in (await buffer.batch(step))[1]]
            assert (await buffer.batch(3))[0].state == pb.BatchHead.STATE_DRAINED
            seen.append([row.row_index for row in rows])
            assert json.loads(rows[0].row_json)["prompt"] == f"{seen[-1][0]}+{seen[-1][0]}="
    assert seen[0] == seen[1] != seen[2]
    assert len(set(seen[0])) == 8 and seen[0] != sorted(seen[0])


async def test_the_first_batch_shows_samples_of_different_tasks(
    buffer: Buffer, tmp_path: Path
) -> None:
    await buffer.open(rollout_plan(tmp_path))
    await ready(buffer)
    await buffer.finish_all((await buffer.lease()).assignments)
    await buffer.batch(1)
    events = await buffer.events("samples")
    assert [event.WhichOneof("event") for event in events] == ["opened", "batch", "samples"]
    assert [event.number for event in events] == [1, 2, 3]
    samples = events[-1].samples.samples
    assert [sample.response for sample in samples] == ["1/0/0", "1/1/0", "1/2/0"]
    assert samples[0].reward == 0.0 and "0+0=" in samples[0].prompt
