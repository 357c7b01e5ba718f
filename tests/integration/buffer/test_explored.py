"""Whoever waits for the end of a stage that has no trainer hears of it when it comes."""

import asyncio
from pathlib import Path

import psycopg

from services.buffer.store.database import RETENTION_TOPIC
from tests.integration.buffer.harness import Buffer
from tests.integration.buffer.plans import write_tasks
from tests.unit.config.builders import stage
from trinity.api.v1 import buffer_pb2 as pb
from trinity.config.plan.stage_plan import StagePlan

NUM_TASKS = 3
SOON_SECONDS = 5.0
DRAINED = pb.LeaseAssignmentsResponse.STATE_DRAINED


def explore_plan(tmp_path: Path) -> StagePlan:
    """One explore step, which nobody trains on."""
    taskset = {"name": "train", "path": write_tasks(tmp_path / "train.jsonl", NUM_TASKS)}
    return stage(
        mode="explore",
        algorithm={"repeat_times": 2},
        buffer={
            "batch_size": NUM_TASKS,
            "total_steps": 1,
            "explorer_input": {"taskset": taskset},
        },
    )


async def test_both_explorers_hear_that_all_is_done(buffer: Buffer, tmp_path: Path) -> None:
    await buffer.open(explore_plan(tmp_path))
    work = (await buffer.lease()).assignments
    waiting = [
        asyncio.ensure_future(explorer.lease(wait_seconds=30.0))
        for explorer in (buffer, buffer.another_explorer())
    ]
    await buffer.finish_all(work)
    async with asyncio.timeout(SOON_SECONDS):
        answers = await asyncio.gather(*waiting)
    assert [one.state for one in answers] == [DRAINED, DRAINED]


async def test_its_end_is_told_to_those_who_keep_contents_few(
    buffer: Buffer, shared_dsn: str, tmp_path: Path
) -> None:
    async with await psycopg.AsyncConnection.connect(shared_dsn, autocommit=True) as listening:
        await listening.execute("LISTEN buffer")
        await buffer.open(explore_plan(tmp_path))
        await buffer.finish_all((await buffer.lease()).assignments)
        assert (await buffer.lease()).state == DRAINED
        heard = {one.payload async for one in listening.notifies(timeout=1.0)}
    assert RETENTION_TOPIC in heard
