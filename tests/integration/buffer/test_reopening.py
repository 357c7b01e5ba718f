"""A stage that failed or was cancelled goes on when it is opened again."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import grpc
import pytest

from tests.integration.buffer.harness import Buffer
from tests.integration.buffer.plans import ROWS, rollout_plan
from trinity.api.v1 import buffer_pb2 as pb

Lease = pb.LeaseAssignmentsResponse
EVAL, TRAIN = pb.ASSIGNMENT_KIND_EVAL, pb.ASSIGNMENT_KIND_TRAIN


async def started(buffer: Buffer) -> None:
    await buffer.begin()
    await buffer.record(0)


async def lose(buffer: Buffer, assignments: Sequence[pb.Assignment]) -> None:
    """Let every run of these fail as often as it may."""
    first = [(one, one.first_attempt) for one in assignments]
    await buffer.settle(
        *(
            buffer.fail(one, run, start + n)
            for one, start in first
            for run in one.runs
            for n in (0, 1)
        )
    )


async def test_a_stage_that_failed_runs_again_what_was_lost(buffer: Buffer, tmp_path: Path) -> None:
    plan = rollout_plan(tmp_path, total_steps=1, max_refill_rounds=1)
    await buffer.open(plan)
    await started(buffer)
    lost = (await buffer.lease()).assignments
    await lose(buffer, lost)
    assert (await buffer.batch(1, wait_seconds=0))[0].state == pb.BatchHead.STATE_WAITING
    await lose(buffer, (await buffer.lease()).assignments)
    head, _ = await buffer.batch(1)
    assert head.state == pb.BatchHead.STATE_CANCELLED
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await buffer.begin()
    assert error.value.code() == grpc.StatusCode.FAILED_PRECONDITION

    await buffer.open(plan)
    assert (await buffer.lease(wait_seconds=0)).reason.startswith("the trainer has not published")
    await started(buffer)
    again = (await buffer.lease()).assignments
    assert [one.id for one in again] == [one.id for one in lost]
    assert {tuple(one.runs) for one in again} == {(0, 1)}
    assert min(one.first_attempt for one in again) > max(one.first_attempt for one in lost)
    await buffer.finish_all(again)
    head, rows = await buffer.batch(1)
    assert (head.state, len(rows)) == (pb.BatchHead.STATE_READY, ROWS)
    notices = [one.notice.text for one in await buffer.events("batch") if one.HasField("notice")]
    assert any(
        text.startswith("stage rft goes on; it had failed: train step 1") for text in notices
    )


async def test_a_stage_opened_again_is_refilled_again(buffer: Buffer, tmp_path: Path) -> None:
    plan = rollout_plan(tmp_path, total_steps=1, max_refill_rounds=1, short_batch="fail")
    await buffer.open(plan)
    await started(buffer)
    first, *others = (await buffer.lease()).assignments
    await buffer.finish_all(others)
    await lose(buffer, [first])
    waiting = asyncio.ensure_future(buffer.batch(1))
    await lose(buffer, (await buffer.lease()).assignments)
    assert (await waiting)[0].state == pb.BatchHead.STATE_CANCELLED
    await buffer.open(plan)
    await started(buffer)
    [again] = (await buffer.lease()).assignments
    assert again.id == first.id
    await lose(buffer, [again])
    waiting = asyncio.ensure_future(buffer.batch(1))
    [refill] = (await buffer.lease()).assignments
    await buffer.finish_all([refill])
    assert (await waiting)[0].num_rows == ROWS


async def test_a_cancelled_stage_goes_on_where_it_was(buffer: Buffer, tmp_path: Path) -> None:
    plan = rollout_plan(tmp_path, num_eval=2)
    await buffer.open(plan)
    await started(buffer)
    first, second, third, held_out, _ = (await buffer.lease()).assignments
    assert held_out.kind == EVAL
    await buffer.finish_all([first, held_out])
    await buffer.settle(buffer.complete(second, 0))
    await buffer.cancel("enough")
    await buffer.open(plan)
    await started(buffer)
    work = (await buffer.lease()).assignments
    assert [(one.kind, list(one.runs)) for one in work] == [
        (TRAIN, [1]),
        (TRAIN, [0, 1]),
        (EVAL, [0]),
    ]
    assert [one.id for one in work[:2]] == [second.id, third.id]
    await buffer.finish_all(work)
    assert (await buffer.batch(1))[0].num_rows == ROWS
    events = await buffer.events("evaluation")
    done = next(one.evaluation for one in events if one.HasField("evaluation"))
    assert (done.num_tasks, done.num_failed) == (2, 0)


async def test_training_that_had_finished_is_not_taken_up_again(
    buffer: Buffer, tmp_path: Path
) -> None:
    plan = rollout_plan(tmp_path, num_eval=1, total_steps=1, sync_offset=1)
    await buffer.open(plan)
    await started(buffer)
    await buffer.finish_all((await buffer.lease()).assignments)
    await buffer.batch(1)
    await buffer.record(1)
    await buffer.finish(1)
    await buffer.cancel("a person wanted it")
    await buffer.open(plan)
    [left] = (await buffer.lease()).assignments
    assert (left.kind, left.required_version) == (EVAL, 1)
    await buffer.finish_all([left])
    assert (await buffer.lease()).state == Lease.STATE_DRAINED
