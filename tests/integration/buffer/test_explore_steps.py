"""Functions that compare all groups of an explore step: called once, with all of them, or not."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import LiteralString

import numpy as np
import psycopg
import pytest
from psycopg import sql

from services.buffer.store.pipeline import claim_step
from tests.integration.buffer.harness import Buffer, talk_to
from tests.integration.buffer.made import Made
from tests.integration.buffer.plans import ROWS, rollout_plan, with_advantage
from tests.integration.buffer.process import BufferProcess
from trinity.api.v1 import buffer_pb2 as pb
from trinity.config.plan.stage_plan import StagePlan
from trinity.runtime.postgres import async_engine
from trinity.runtime.sql import transaction

USERS = """
from trinity.algorithm.advantage.needs import Needs, needs
from trinity.algorithm.advantage.samples import Advantages

@needs(Needs(whole_step=True))
def own(samples):
    {body}
    return Advantages(samples.rewards - samples.rewards.mean())
"""
SCOPES = """
SELECT state, attempts, count(*) FROM buffer.pipeline_scope
WHERE experiment_id = %s GROUP BY 1, 2
"""
CLAIM_SECONDS = 60.0
REWARDS = {0: (0.0, 1.0), 1: (3.0, 5.0), 2: (2.0, 2.0)}


def expected_advantages(rewards: dict[int, tuple[float, float]]) -> list[float]:
    """GRPO with the deviation of all rewards."""
    table = np.array([rewards[position] for position in sorted(rewards)])
    spread = table.std(ddof=1) + 1e-6
    advantages: list[float] = ((table - table.mean(1, keepdims=True)) / spread).reshape(-1).tolist()
    return advantages


def batch_plan(tmp_path: Path) -> StagePlan:
    plan = rollout_plan(tmp_path, total_steps=1, max_refill_rounds=0)
    return with_advantage(plan, "grpo", std_cal_level="batch")


async def began(buffer: Buffer, plan: StagePlan) -> list[pb.Assignment]:
    await buffer.open(plan)
    await buffer.begin()
    await buffer.record(0)
    return list((await buffer.lease()).assignments)


async def finish(buffer: Buffer, assignment: pb.Assignment) -> None:
    rewards = REWARDS[assignment.position]
    await buffer.settle(
        *(buffer.complete(assignment, run, Made(reward=one)) for run, one in enumerate(rewards))
    )


@asynccontextmanager
async def buffer_with(
    dsn: str, nats_url: str, tmp_path: Path, body: str
) -> AsyncIterator[tuple[BufferProcess, Buffer]]:
    """A buffer that finds the user's function `users_steps.own`."""
    write_function(tmp_path, body)
    extra = {"PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    async with (
        BufferProcess(dsn, nats_url, tmp_path / "buffer.log", extra) as process,
        talk_to(process) as calls,
    ):
        yield process, calls


def write_function(tmp_path: Path, body: str) -> None:
    (tmp_path / "users_steps.py").write_text(USERS.format(body=body))


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not is_so():  # noqa: ASYNC110 - what is waited for happens in another process
            await asyncio.sleep(0.05)


def scopes_of(dsn: str, buffer: Buffer) -> set[tuple[str, int, int]]:
    with psycopg.connect(dsn) as connection:
        return set(connection.execute(SCOPES, [buffer.key.experiment_id]).fetchall())


async def test_groups_wait_for_the_whole_explore_step_and_are_compared_with_all_of_it(
    buffer: Buffer, tmp_path: Path
) -> None:
    assignments = await began(buffer, batch_plan(tmp_path))
    for one in assignments[:2]:
        await finish(buffer, one)
    head, _ = await buffer.batch(1, wait_seconds=1)
    assert head.state == pb.BatchHead.STATE_WAITING
    assert (await buffer.status()).num_ready == 0
    await finish(buffer, assignments[2])
    _, rows = await buffer.batch(1)
    assert [row.advantage for row in rows] == pytest.approx(expected_advantages(REWARDS), rel=1e-6)


async def test_a_task_that_is_given_up_holds_nobody(buffer: Buffer, tmp_path: Path) -> None:
    assignments = await began(buffer, batch_plan(tmp_path))
    for one in assignments[:2]:
        await finish(buffer, one)
    failures = [
        buffer.fail(assignments[2], run, assignments[2].first_attempt + attempt)
        for run in assignments[2].runs
        for attempt in range(2)
    ]
    await buffer.settle(*failures)
    _, rows = await buffer.batch(1)
    some = {position: REWARDS[position] for position in (0, 1)}
    assert [row.advantage for row in rows] == pytest.approx(expected_advantages(some), rel=1e-6)


async def test_refills_of_a_step_are_compared_among_themselves(
    buffer: Buffer, tmp_path: Path
) -> None:
    plan = rollout_plan(tmp_path, total_steps=1)
    plan = with_advantage(plan, "grpo", std_cal_level="batch", std_threshold=0.0)
    for one in await began(buffer, plan):
        await finish(buffer, one)
    await buffer.batch(1, wait_seconds=1)
    [refill] = (await buffer.lease()).assignments
    await buffer.settle(
        buffer.complete(refill, 0, Made(reward=0.0)), buffer.complete(refill, 1, Made(reward=4.0))
    )
    _, rows = await buffer.batch(1)
    first = expected_advantages(REWARDS)[:4]
    second = expected_advantages({3: (0.0, 4.0)})
    assert [row.advantage for row in rows] == pytest.approx(first + second, rel=1e-6)


async def test_a_users_function_may_ask_for_the_whole_step(
    buffer_dsn: str, nats_url: str, tmp_path: Path
) -> None:
    async with buffer_with(buffer_dsn, nats_url, tmp_path, "pass") as (_, buffer):
        plan = with_advantage(batch_plan(tmp_path), "users_steps.own")
        for one in await began(buffer, plan):
            await finish(buffer, one)
        _, rows = await buffer.batch(1)
        rewards = np.array([REWARDS[position] for position in range(3)]).reshape(-1)
        assert [row.advantage for row in rows] == pytest.approx((rewards - rewards.mean()).tolist())


async def test_a_step_that_a_function_fails_on_is_left_out_as_a_whole(
    buffer_dsn: str, nats_url: str, tmp_path: Path
) -> None:
    body = "assert len(samples.rewards) == 5, 'six'"
    async with buffer_with(buffer_dsn, nats_url, tmp_path, body) as (process, buffer):
        plan = with_advantage(batch_plan(tmp_path), "users_steps.own")
        for one in await began(buffer, plan):
            await finish(buffer, one)
        events = await buffer.events("notice")
        text = next(one.notice.text for one in events if one.HasField("notice"))
        assert "the samples of 3 tasks are left out" in text and "AssertionError: six" in text
        assert scopes_of(process.dsn, buffer) == {("dead", 3, 3)}
        assert (await buffer.batch(1))[0].state == pb.BatchHead.STATE_CANCELLED
        write_function(tmp_path, "pass")
        await buffer.open(plan)
        await buffer.begin()
        head, rows = await buffer.batch(1)
        assert (head.state, len(rows)) == (pb.BatchHead.STATE_READY, ROWS)


async def test_a_buffer_that_dies_over_a_step_leaves_it_whole_to_the_next(
    buffer_dsn: str, nats_url: str, tmp_path: Path
) -> None:
    body = "import pathlib, time; pathlib.Path('begun').touch(); time.sleep(60)"
    body = body.replace("'begun'", repr(str(tmp_path / "begun")))
    async with buffer_with(buffer_dsn, nats_url, tmp_path, body) as (process, buffer):
        plan = with_advantage(batch_plan(tmp_path), "users_steps.own")
        for one in await began(buffer, plan):
            await finish(buffer, one)
        await until(lambda: (tmp_path / "begun").exists())
        assert scopes_of(process.dsn, buffer) == {("claimed", 1, 3)}
        process.kill()
        write_function(tmp_path, "pass")
        await process.start()
        _, rows = await buffer.batch(1, wait_seconds=30)
        assert len(rows) == ROWS
        assert sum(row.advantage for row in rows) == pytest.approx(0.0)
        assert scopes_of(process.dsn, buffer) == {("done", 1, 3)}


async def test_of_many_workers_one_takes_the_step_and_it_takes_all_of_it(
    own_process: BufferProcess, own_buffer: Buffer, tmp_path: Path
) -> None:
    assignments = await began(own_buffer, batch_plan(tmp_path))
    for one in assignments[:2]:
        await finish(own_buffer, one)
    engine = async_engine(own_process.dsn, "buffer")

    async def claim() -> list[str]:
        async with transaction(engine) as connection:
            claims = await claim_step(connection, own_buffer.key, claim_seconds=CLAIM_SECONDS)
            return [claim.assignment_id for claim in claims]

    try:
        assert await claim() == []
        own_process.kill()
        change(own_process.dsn, own_buffer, "assignment SET state = 'closed'")
        taken = await asyncio.gather(*(claim() for _ in range(8)))
        expected = [one.id for one in assignments[:2]]
        assert sorted(taken) == [[]] * 7 + [expected]
        change(own_process.dsn, own_buffer, "pipeline_scope SET claimed_until = now()")
        assert await claim() == expected
    finally:
        await engine.dispose()


def change(dsn: str, buffer: Buffer, what: LiteralString) -> None:
    """Change rows of the experiment behind the service's back."""
    query = sql.SQL("UPDATE buffer.{} WHERE experiment_id = %s").format(sql.SQL(what))
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(query, [buffer.key.experiment_id])
