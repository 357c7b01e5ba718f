"""Samples that may be trained again keep their contents, however old; those that left may go."""

import asyncio
from pathlib import Path

import psycopg
import pytest

from tests.integration.buffer.calls import CALL_SECONDS
from tests.integration.buffer.harness import Buffer
from tests.integration.buffer.plans import ROWS, rollout_plan
from tests.integration.buffer.process import BufferProcess

CAPACITY, NUM_STEPS = 10, 8
REMOVED = "SELECT count(*) FROM segment WHERE experiment_id = %s AND removed_at IS NOT NULL"
POOLED = """
    SELECT count(*), count(p.payload_id) FROM replay_pool
    JOIN experience e USING (tenant, experiment_id, stage, experience_id)
    LEFT JOIN payload p USING (tenant, experiment_id, stage, segment_id, payload_id)
    WHERE e.experiment_id = %s
"""


@pytest.fixture
def own_settings() -> dict[str, str]:
    """Each explore step's rows are a partition of their own."""
    return {"TRINITY_BUFFER_SEGMENT_MAX_ROWS": str(ROWS)}


async def test_what_may_be_replayed_is_there_and_what_left_the_pool_goes(
    own_process: BufferProcess, own_buffer: Buffer, tmp_path: Path
) -> None:
    replayed = {"enable": True, "reuse_cooldown_time": 1}
    plan = rollout_plan(
        tmp_path,
        num_tasks=60,
        total_steps=NUM_STEPS,
        train_batch_size=ROWS + 2,
        keep_steps=0,
        trainer_input={"experience_buffer": {"capacity": CAPACITY, "replay_buffer": replayed}},
    )
    await own_buffer.open(plan)
    await own_buffer.begin()
    await own_buffer.record(0)
    for step in range(1, NUM_STEPS + 1):
        await own_buffer.finish_all((await own_buffer.lease()).assignments)
        head, _ = await own_buffer.batch(step)
        assert head.num_rows, head.reason
        await own_buffer.report(step)
        await own_buffer.record(step)
        await own_buffer.checkpoint(step)
    experiment = [own_buffer.key.experiment_id]
    with psycopg.connect(own_process.dsn, autocommit=True) as connection:
        async with asyncio.timeout(CALL_SECONDS):
            while (connection.execute(REMOVED, experiment).fetchone() or (0,)) == (0,):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        pooled, there = connection.execute(POOLED, experiment).fetchone() or (0, 0)
    assert pooled == there > 0
