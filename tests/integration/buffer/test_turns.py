"""A stage whose functions are slow holds up no other one."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

import psycopg
import pytest

from tests.integration.buffer.harness import Buffer, talk_to
from tests.integration.buffer.plans import ROWS, rollout_plan, with_advantage, with_operators
from tests.integration.buffer.process import BufferProcess
from trinity.api.v1 import buffer_pb2 as pb
from trinity.config.plan.stage_plan import StagePlan

Train = Callable[[Buffer, Path], Awaitable[None]]
NUM_SLOW = 24
WAIT_SECONDS = 60.0
SLOW = "tests.integration.buffer.slow_advantage.slow"
SCOPES = """
SELECT count(*), count(*) FILTER (WHERE state = 'done'), max(attempts)
FROM buffer.pipeline_scope WHERE experiment_id = %s
"""


async def begin(buffer: Buffer, plan: StagePlan) -> None:
    await buffer.open(plan)
    await buffer.begin()
    await buffer.record(0)


async def begin_slow(buffer: Buffer, folder: Path, seconds: float = 1.0) -> None:
    """So many groups are complete, and each takes so long."""
    plan = rollout_plan(folder, num_tasks=NUM_SLOW, sync_offset=NUM_SLOW, total_steps=8)
    await begin(buffer, with_advantage(plan, SLOW, seconds=seconds))
    work = (await buffer.lease()).assignments
    assert len(work) == NUM_SLOW
    await buffer.finish_all(work)


def shaped(process: BufferProcess, buffer: Buffer) -> tuple[int, int, int]:
    """How many groups of a stage are complete, how many of them shaped, and the most tries."""
    with psycopg.connect(process.dsn) as connection:
        found = connection.execute(SCOPES, [buffer.key.experiment_id]).fetchone()
    assert found is not None
    return found


async def train_filtered(buffer: Buffer, folder: Path) -> None:
    """A step most of whose groups are left out, and drawn anew."""
    plan = rollout_plan(folder, total_steps=1, max_refill_rounds=8)
    plan = with_operators(plan, "dapo_dynamic_sampling")
    await begin(buffer, plan)
    for reward in (0.0, 0.0, 0.0, 1.0):
        await buffer.finish_all(await next_work(buffer), reward=reward)
    await expect_batch(buffer)


async def next_work(buffer: Buffer) -> Sequence[pb.Assignment]:
    """What is handed out, or drawn in place of what was left out."""
    async with asyncio.timeout(WAIT_SECONDS):
        while not (work := (await buffer.lease(wait_seconds=0.5)).assignments):
            await buffer.batch(1, wait_seconds=0.5)
    return work


async def expect_batch(buffer: Buffer) -> None:
    """A whole one."""
    async with asyncio.timeout(WAIT_SECONDS):
        while (found := await buffer.batch(1))[0].state == pb.BatchHead.STATE_WAITING:
            pass
    head, rows = found
    assert (head.state, len(rows)) == (pb.BatchHead.STATE_READY, ROWS)


async def train_with_own(buffer: Buffer, folder: Path) -> None:
    """A step whose groups go to a user's function, which is quick."""
    plan = with_advantage(rollout_plan(folder, total_steps=1), SLOW, seconds=0.0)
    await begin(buffer, plan)
    await buffer.finish_all((await buffer.lease()).assignments)
    await expect_batch(buffer)


@contextlib.asynccontextmanager
async def talk_to_slow(
    process: BufferProcess, count: int, folder: Path
) -> AsyncIterator[list[Buffer]]:
    """Slow stages, with all of their work before them."""
    async with contextlib.AsyncExitStack() as stack:
        slow = [await stack.enter_async_context(talk_to(process)) for _ in range(count)]
        for one in slow:
            await begin_slow(one, folder)
        yield slow


@pytest.mark.parametrize(
    ("train", "num_slow"),
    [
        # five slow stages hold up more than one does
        pytest.param(train_filtered, 1, marks=pytest.mark.thorough),
        (train_with_own, 1),
        (train_filtered, 5),
    ],
)
async def test_a_stage_goes_on_beside_slow_ones(
    own_process: BufferProcess, own_buffer: Buffer, tmp_path: Path, num_slow: int, train: Train
) -> None:
    async with talk_to_slow(own_process, num_slow, tmp_path) as slow:
        await train(own_buffer, tmp_path)
        for one in slow:
            complete, done, num_tries = shaped(own_process, one)
            assert done < complete == NUM_SLOW
            assert num_tries <= 1, "what there was no time for was not tried"
