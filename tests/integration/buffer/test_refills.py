"""A step that lacks rows draws as many further tasks as may be expected to make up for them."""

import asyncio
from pathlib import Path

from tests.integration.buffer.harness import Buffer
from tests.integration.buffer.made import Made
from tests.integration.buffer.plans import rollout_plan
from trinity.types import FinishReason

NUM_TASKS = 20
REPEAT_TIMES = 2


async def test_where_half_is_lost_twice_as_many_are_drawn_and_it_is_shown(
    buffer: Buffer, tmp_path: Path
) -> None:
    plan = rollout_plan(
        tmp_path,
        num_tasks=200,
        total_steps=1,
        train_batch_size=NUM_TASKS * REPEAT_TIMES,
        batch_size=NUM_TASKS,
    )
    await buffer.open(plan)
    await buffer.begin()
    await buffer.record(0)
    first = (await buffer.lease()).assignments
    lost, kept = first[: NUM_TASKS // 2], first[NUM_TASKS // 2 :]
    aborted = Made(reward=1.0, finish_reason=FinishReason.ABORT)
    await buffer.settle(
        *(buffer.complete(one, run, aborted) for one in lost for run in range(REPEAT_TIMES))
    )
    await buffer.finish_all(kept)
    waiting = asyncio.ensure_future(buffer.batch(1, wait_seconds=30))
    refills = (await buffer.lease(wait_seconds=30)).assignments
    assert [one.position for one in refills] == list(range(NUM_TASKS, 2 * NUM_TASKS))
    status = await buffer.status()
    assert (status.refill_round, status.num_refill_tasks) == (1, NUM_TASKS)
    assert (status.num_recent_runs, status.num_recent_lost) == (40, 20)
    await buffer.finish_all(refills)
    head, _ = await waiting
    assert head.num_rows == NUM_TASKS * REPEAT_TIMES
