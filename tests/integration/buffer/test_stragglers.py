"""Explore steps that do not wait for their slowest tasks (`explorer.over_rollout`)."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from tests.integration.buffer.calls import CALL_SECONDS
from tests.integration.buffer.harness import Buffer
from tests.integration.buffer.made import Made
from tests.integration.buffer.plans import REPEAT_TIMES, rollout_plan
from trinity.api.v1 import buffer_pb2 as pb
from trinity.config.plan.stage_plan import StagePlan

NEEDED = 2
ROWS = NEEDED * REPEAT_TIMES
COUNTS = "experience_pipeline/over_rollout"


def plan_of(
    tmp_path: Path,
    *,
    wait_after_min: float = 0.0,
    partial: bool = False,
    sync_offset: int = 0,
    total_steps: int = 4,
) -> StagePlan:
    """Two of four tasks are enough, and a train step takes what they give."""
    return rollout_plan(
        tmp_path,
        num_tasks=20,
        batch_size=4,
        train_batch_size=ROWS,
        over_rollout={
            "ratio": 0.5,
            "wait_after_min": wait_after_min,
            "return_partial_tasks": partial,
        },
        sync_offset=sync_offset,
        total_steps=total_steps,
    )


async def began(buffer: Buffer, plan: StagePlan) -> list[pb.Assignment]:
    await buffer.open(plan)
    await buffer.begin()
    await buffer.record(0)
    return list((await buffer.lease()).assignments)


async def lost(buffer: Buffer, assignments: Sequence[pb.Assignment]) -> set[str]:
    """Wait until some of these leases are lost; answers which."""
    async with asyncio.timeout(CALL_SECONDS):
        while True:
            if found := (await buffer.renew(*assignments)).lost_assignment_ids:
                return set(found)
            await asyncio.sleep(0.1)


async def test_a_step_is_complete_when_enough_of_its_tasks_have_ended(
    buffer: Buffer, tmp_path: Path
) -> None:
    tasks = await began(buffer, plan_of(tmp_path))
    assert len(tasks) == 4
    await buffer.settle(buffer.complete(tasks[0], 0, Made(num_tokens=2)))
    await buffer.finish_all([tasks[1], tasks[3]])
    assert await lost(buffer, [tasks[0], tasks[2]]) == {tasks[0].id, tasks[2].id}

    head, rows = await buffer.batch(1)
    assert {(row.experience.eid.position, row.experience.eid.run) for row in rows} == {
        (position, run) for position in (1, 3) for run in range(REPEAT_TIMES)
    }
    assert head.metrics[f"{COUNTS}/cut_task_count"] == 2
    assert head.metrics[f"{COUNTS}/cut_run_count"] == 3
    assert head.metrics[f"{COUNTS}/cut_sample_count"] == 1
    assert head.metrics[f"{COUNTS}/cut_response_length/mean"] == 2

    [late] = await buffer.settle(buffer.complete(tasks[2], 0))
    assert late.state == pb.CommitReport.STATE_LATE


async def test_tasks_that_ended_beyond_what_a_step_needs_are_trained_in_the_next(
    buffer: Buffer, tmp_path: Path
) -> None:
    first = await began(buffer, plan_of(tmp_path))
    await buffer.finish_all(first[:3])
    assert await lost(buffer, first[3:]) == {first[3].id}
    _, before = await buffer.batch(1)
    await buffer.record(1)

    second = list((await buffer.lease()).assignments)
    assert [one.position for one in second] == [0, 1, 2]
    assert len({one.task_index for one in [*first, *second]}) == 7
    await buffer.finish_all(second[:1])
    assert len(await lost(buffer, second[1:])) == 2
    _, after = await buffer.batch(2)
    places = [(row.experience.eid.explore_step, row.experience.eid.position) for row in after]
    assert places == [(1, 2)] * REPEAT_TIMES + [(2, 0)] * REPEAT_TIMES
    ids = [row.experience.id for row in [*before, *after]]
    assert len(set(ids)) == 2 * ROWS


async def test_slow_tasks_get_the_time_that_is_left_to_them(buffer: Buffer, tmp_path: Path) -> None:
    tasks = await began(buffer, plan_of(tmp_path, wait_after_min=3600.0, sync_offset=1))
    await buffer.finish_all(tasks[:2])
    _, rows = await buffer.batch(1)
    assert len(rows) == ROWS
    await asyncio.sleep(2.5)
    assert not (await buffer.renew(*tasks[2:])).lost_assignment_ids
    await buffer.finish_all(tasks[2:])


async def test_a_refilled_step_waits_for_all_that_refills_it(
    buffer: Buffer, tmp_path: Path
) -> None:
    tasks = await began(buffer, plan_of(tmp_path))
    fails = [
        buffer.fail(one, run, one.first_attempt + attempt)
        for one in tasks[:2]
        for run in range(REPEAT_TIMES)
        for attempt in range(2)
    ]
    await buffer.settle(*fails)
    assert len(await lost(buffer, tasks[2:])) == 2
    waiting = asyncio.create_task(buffer.batch(1))
    refill = list((await buffer.lease()).assignments)
    assert [(one.explore_step, one.position) for one in refill] == [(1, 4), (1, 5)]
    await buffer.finish_all(refill[:1])
    await asyncio.sleep(2.5)
    await buffer.finish_all(refill[1:])
    _, rows = await waiting
    assert len(rows) == ROWS


async def test_runs_that_ended_of_unfinished_tasks_are_trained_where_that_is_asked_for(
    buffer: Buffer, tmp_path: Path
) -> None:
    plan = plan_of(tmp_path, partial=True, total_steps=2)
    tasks = await began(buffer, plan)
    kept = [buffer.complete(one, 0, Made(num_tokens=2)) for one in (tasks[0], tasks[2])]
    await buffer.settle(*kept)
    await buffer.finish_all([tasks[1], tasks[3]])
    assert await lost(buffer, [tasks[0], tasks[2]]) == {tasks[0].id, tasks[2].id}
    [late] = await buffer.settle(buffer.complete(tasks[2], 1))
    assert late.state == pb.CommitReport.STATE_LATE

    head, first = await buffer.batch(1)
    assert f"{COUNTS}/cut_task_count" not in head.metrics
    await buffer.record(1)
    second = list((await buffer.lease()).assignments)
    assert len(second) == 4 - len(kept) // REPEAT_TIMES
    await buffer.finish_all(second[:2])
    _, after = await buffer.batch(2)
    rows = [row.experience.eid for row in [*first, *after] if row.experience.eid.explore_step == 1]
    whole = [(position, run) for position in (1, 3) for run in range(REPEAT_TIMES)]
    assert sorted((row.position, row.run) for row in rows) == sorted([(0, 0), (2, 0), *whole])
