"""Leases: who gets which work, when it comes back, and how a stage ends."""

from pathlib import Path
from typing import Unpack

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from services.buffer.store.assignments import seconds_until_expiry
from tests.integration.buffer.harness import Buffer
from tests.integration.buffer.made import Made
from tests.integration.buffer.plans import Sizes, rollout_plan
from trinity.api.v1 import buffer_pb2 as pb
from trinity.runtime.postgres import async_engine
from trinity.runtime.sql import transaction

Lease = pb.LeaseAssignmentsResponse


async def opened(buffer: Buffer, tmp_path: Path, **plan: Unpack[Sizes]) -> None:
    await buffer.open(rollout_plan(tmp_path, **plan))
    await buffer.begin()
    await buffer.record(0)


async def test_the_next_step_waits_for_the_weights_it_needs(buffer: Buffer, tmp_path: Path) -> None:
    await opened(buffer, tmp_path)
    await buffer.finish_all((await buffer.lease()).assignments)
    waiting = await buffer.lease(wait_seconds=0)
    assert waiting.state == Lease.STATE_WAITING
    assert waiting.reason.startswith("explore step 2 needs weights version 1")
    await buffer.batch(1)
    await buffer.record(1)
    granted = await buffer.lease()
    assert {(one.explore_step, one.required_version) for one in granted.assignments} == {(2, 1)}


async def test_no_lease_opens_more_steps_than_its_work_takes(
    buffer: Buffer, shared_dsn: str, tmp_path: Path
) -> None:
    await opened(buffer, tmp_path, total_steps=1_000, sync_interval=1_000)
    engine = async_engine(shared_dsn, "buffer")
    try:
        assert await leased_and_open(buffer, engine, count=1) == ([1], 3)
        assert await leased_and_open(buffer, engine, count=7) == ([1, 1, 2, 2, 2, 3, 3], 12)
    finally:
        await engine.dispose()


async def leased_and_open(
    buffer: Buffer, engine: AsyncEngine, *, count: int
) -> tuple[list[int], int]:
    """Explore steps of what a lease gives, and the tasks that are open then."""
    leased = [one.explore_step for one in (await buffer.lease(count)).assignments]
    number = sa.text("SELECT count(*) FROM assignment WHERE experiment_id = :id")
    async with transaction(engine) as connection:
        return leased, await connection.fetch_value(number, {"id": buffer.key.experiment_id})


async def test_work_of_a_dead_explorer_goes_to_another_without_its_finished_runs(
    buffer: Buffer, tmp_path: Path
) -> None:
    await opened(buffer, tmp_path)
    first = (await buffer.lease(1, lease_seconds=0.2)).assignments[0]
    await buffer.settle(buffer.complete(first, 0))
    other = buffer.another_explorer()
    regained = (await other.lease(1)).assignments[0]
    while regained.id != first.id:
        regained = (await other.lease(1)).assignments[0]
    assert list(regained.runs) == [1]
    assert (first.first_attempt, regained.first_attempt) == (0, 3)
    assert regained.lease_token != first.lease_token
    leases = [pb.Lease(assignment_id=first.id, lease_token=first.lease_token)]
    renewed = await buffer.stub.RenewLeases(
        pb.RenewLeasesRequest(
            key=buffer.pb_key, explorer_id=buffer.explorer_id, leases=leases, lease_seconds=5
        ),
        timeout=10,
    )
    assert list(renewed.lost_assignment_ids) == [first.id]


async def test_a_lease_that_is_over_and_may_not_be_granted_is_not_looked_for_again(
    buffer: Buffer, shared_dsn: str, tmp_path: Path
) -> None:
    await opened(buffer, tmp_path)
    await buffer.lease(lease_seconds=600)
    engine = async_engine(shared_dsn, "buffer")
    async with transaction(engine) as connection:
        left = await seconds_until_expiry(connection, buffer.key)
        assert left is not None and 0 < left <= 600
        expired = sa.text("UPDATE assignment SET lease_until = now() WHERE experiment_id = :id")
        await connection.execute(expired, {"id": buffer.key.experiment_id})
        assert await seconds_until_expiry(connection, buffer.key) is None
    await engine.dispose()
    await buffer.begin()
    assert (await buffer.lease(wait_seconds=0)).state == Lease.STATE_WAITING


async def test_released_work_is_leased_again_at_once(buffer: Buffer, tmp_path: Path) -> None:
    await opened(buffer, tmp_path)
    mine = await buffer.lease()
    other = buffer.another_explorer()
    waiting = await other.lease(wait_seconds=0)
    assert waiting.reason == (
        f"explore step 1: 3 of 3 assignments still open, held by explorer {buffer.explorer_id}"
    )
    released = await buffer.stub.ReleaseLeases(
        pb.ReleaseLeasesRequest(key=buffer.pb_key, explorer_id=buffer.explorer_id), timeout=10
    )
    assert released.num_released == 3
    again = await other.lease()
    assert [one.id for one in again.assignments] == [one.id for one in mine.assignments]


async def test_credit_bounds_what_is_ahead_of_the_trainer(buffer: Buffer, tmp_path: Path) -> None:
    await opened(buffer, tmp_path, sync_offset=2, total_steps=20)
    granted = await buffer.lease()
    assert {one.explore_step for one in granted.assignments} == {1, 2, 3}
    assert all(one.required_version == 0 for one in granted.assignments)


async def test_many_samples_a_run_do_not_pile_up(buffer: Buffer, tmp_path: Path) -> None:
    await opened(buffer, tmp_path, sync_offset=1, total_steps=20)
    granted = (await buffer.lease()).assignments
    await buffer.settle(
        *(buffer.complete(one, run, Made(), Made(), Made()) for one in granted for run in one.runs)
    )
    await buffer.batch(1)
    await buffer.record(1)
    waiting = await buffer.lease(wait_seconds=0)
    assert waiting.state == Lease.STATE_WAITING
    assert "waits until the trainer has taken some of 30 rows" in waiting.reason
    for step in (2, 3, 4):
        await buffer.batch(step)
    assert (await buffer.lease()).state == Lease.STATE_GRANTED


async def test_the_credit_of_runs_that_are_given_up_comes_back(
    buffer: Buffer, tmp_path: Path
) -> None:
    """Twelve rows of the first step wait: with those, a single run of the second is too many."""
    await opened(buffer, tmp_path, sync_offset=1, total_steps=20, max_refill_rounds=0)
    granted = (await buffer.lease()).assignments
    first, second = ([one for one in granted if one.explore_step == step] for step in (1, 2))
    assert (len(first), len(second)) == (3, 3)
    await buffer.settle(
        *(buffer.complete(one, run, Made(), Made(), Made()) for one in first for run in one.runs)
    )
    await buffer.batch(1)
    await buffer.record(1)
    *others, last = [(one, run) for one in second for run in one.runs]
    tried_once = [buffer.fail(one, run, attempt=0) for one, run in (*others, last)]
    await buffer.settle(*tried_once)
    await buffer.settle(*(buffer.fail(one, run, attempt=1) for one, run in others))
    assert (await buffer.lease(wait_seconds=0)).state == Lease.STATE_WAITING
    await buffer.settle(buffer.fail(*last, attempt=1))
    third = (await buffer.lease()).assignments
    assert [one.explore_step for one in third] == [3, 3, 3]


async def test_a_stage_is_drained_when_training_and_the_last_evaluation_are_done(
    buffer: Buffer, tmp_path: Path
) -> None:
    await opened(buffer, tmp_path, total_steps=1)
    await buffer.finish_all((await buffer.lease()).assignments)
    waiting = await buffer.lease(wait_seconds=0)
    assert waiting.reason.startswith("every explore step is open; the trainer has trained step 0")
    await buffer.batch(1)
    await buffer.report(1)
    assert (await buffer.batch(2))[0].state == pb.BatchHead.STATE_DRAINED
    await buffer.record(1)
    await buffer.finish(1)
    await buffer.finish(1)
    assert (await buffer.lease()).state == Lease.STATE_DRAINED
    assert await buffer.stages() == []
    assert (await buffer.begin()).finished_step == 1


async def test_a_cancelled_stage_takes_all_work_back(buffer: Buffer, tmp_path: Path) -> None:
    await opened(buffer, tmp_path)
    first, *_ = (await buffer.lease()).assignments
    assert await buffer.cancel("enough") == 3
    assert await buffer.cancel("again") == 0
    assert await buffer.stages() == []
    refused = await buffer.lease()
    assert (refused.state, refused.reason) == (Lease.STATE_CANCELLED, "enough")
    head, _ = await buffer.batch(1)
    assert (head.state, head.reason) == (pb.BatchHead.STATE_CANCELLED, "enough")
    [late] = await buffer.settle(buffer.complete(first, 0))
    assert late.state == pb.CommitReport.STATE_LATE


async def test_a_lost_step_is_refilled_then_trained_short(buffer: Buffer, tmp_path: Path) -> None:
    await opened(buffer, tmp_path, total_steps=1, max_refill_rounds=1)
    first, second, third = (await buffer.lease()).assignments
    broken = [buffer.fail(first, run, attempt) for run in (0, 1) for attempt in (0, 1)]
    await buffer.settle(*broken)
    await buffer.finish_all([second, third])
    assert (await buffer.batch(1, wait_seconds=0.5))[0].state == pb.BatchHead.STATE_WAITING
    [refill] = (await buffer.lease()).assignments
    assert (refill.explore_step, refill.position, refill.task_index) == (1, 3, 3)
    await buffer.settle(*(buffer.fail(refill, run, a) for run in (0, 1) for a in (0, 1)))
    head, rows = await buffer.batch(1)
    assert (head.state, len(rows)) == (pb.BatchHead.STATE_READY, 4)
    events = await buffer.events("batch")
    notice = next(event.notice.text for event in events if event.HasField("notice"))
    assert (
        notice.startswith("explore step 1: tasks given up, as all of their runs failed: 1, first")
        and "it broke" in notice
    )


async def test_a_step_that_stays_short_fails_the_stage_if_the_plan_says_so(
    buffer: Buffer, tmp_path: Path
) -> None:
    plan = rollout_plan(tmp_path, total_steps=1, max_refill_rounds=0, short_batch="fail")
    await buffer.open(plan)
    await buffer.begin()
    await buffer.record(0)
    first, *others = (await buffer.lease()).assignments
    await buffer.settle(*(buffer.fail(first, run, a) for run in (0, 1) for a in (0, 1)))
    await buffer.finish_all(others)
    head, _ = await buffer.batch(1)
    assert head.state == pb.BatchHead.STATE_CANCELLED
    assert head.reason.startswith("train step 1 has 4 of 6 rows after 0 rounds of refill")
    assert (await buffer.lease()).state == Lease.STATE_CANCELLED


async def test_a_short_last_batch_is_trained(buffer: Buffer, tmp_path: Path) -> None:
    await opened(buffer, tmp_path, total_steps=1, train_batch_size=4)
    await buffer.finish_all((await buffer.lease()).assignments)
    assert (await buffer.batch(1))[0].num_rows == 4
    assert (await buffer.batch(2))[0].num_rows == 2
    assert (await buffer.batch(3))[0].state == pb.BatchHead.STATE_DRAINED
