"""The status tells how a stage gets on, and what came of its newest runs."""

import asyncio
from pathlib import Path

import psycopg

from tests.integration.buffer.harness import Buffer
from tests.integration.buffer.made import Made
from tests.integration.buffer.plans import data_plan, rollout_plan


async def test_the_status_tells_when_steps_were_trained_and_why_runs_were_lost(
    buffer: Buffer, tmp_path: Path
) -> None:
    await buffer.open(rollout_plan(tmp_path))
    await buffer.begin()
    await buffer.record(0)
    before = await buffer.status()
    assert (before.step_age_seconds, before.step_seconds, before.num_recent_runs) == (-1, 0, 0)
    for step in (1, 2):
        kept, filtered, broken = (await buffer.lease()).assignments
        await buffer.finish_all([kept])
        awaited = [buffer.complete(filtered, run, Made(reward=None)) for run in (0, 1)]
        failed = [
            buffer.fail(broken, run, attempt, "no tool") for run in (0, 1) for attempt in (0, 1)
        ]
        await buffer.settle(*awaited, *failed)
        asking = asyncio.create_task(buffer.batch(step))
        await buffer.finish_all((await buffer.lease()).assignments)
        await asking
        await buffer.report(step, **{"perf/idle_share": step / 4})
        await buffer.record(step)
    now = await buffer.status()
    assert now.total_train_steps == 4 and now.refill_round == 1
    assert now.num_recent_runs == 2 * (6 + 4) and now.num_recent_lost == 2 * 4
    assert now.recent_loss in ("no tool", "its reward is still awaited")
    assert 0 <= now.step_age_seconds < 60 and 0 < now.step_seconds < 60
    assert (before.idle_share, now.idle_share) == (-1, (1 / 4 + 2 / 4) / 2)


async def trained(buffer: Buffer, *steps: int) -> None:
    for step in steps:
        await buffer.batch(step)
        await buffer.report(step)


def set_back(dsn: str, buffer: Buffer, seconds: int) -> None:
    """Let all that was reported so far be that much older."""
    with psycopg.connect(dsn) as connection:
        connection.execute(
            "UPDATE buffer.step_report SET reported_at = reported_at - make_interval(secs => %s)"
            " WHERE experiment_id = %s",
            [seconds, buffer.key.experiment_id],
        )


async def test_a_step_that_is_trained_again_counts_from_now(
    buffer: Buffer, shared_dsn: str, tmp_path: Path
) -> None:
    """Whatever higher steps the lives before have trained."""
    await buffer.open(data_plan(tmp_path, num_rows=60))
    await buffer.begin()
    await trained(buffer, *range(1, 14))
    set_back(shared_dsn, buffer, 3600)
    await buffer.begin()
    assert (await buffer.status()).step_age_seconds >= 3600
    await trained(buffer, 1)
    now = await buffer.status()
    assert 0 <= now.step_age_seconds < 60 and 0 < now.step_seconds < 60
    set_back(shared_dsn, buffer, 1800)
    await buffer.begin()
    assert 1800 <= (await buffer.status()).step_age_seconds < 1860
    await trained(buffer, *range(1, 13))
    assert 0 <= (await buffer.status()).step_age_seconds < 60
