"""Advantage functions of users: called in a process of their own, with an end to every mistake."""

from pathlib import Path

import grpc
import psycopg
import pytest

from services.buffer.store.experiences import derived_id
from tests.integration.buffer.conftest import LIMIT_SECONDS, UsersModule
from tests.integration.buffer.harness import Buffer
from tests.integration.buffer.plans import ROWS, rollout_plan, with_advantage
from tests.integration.buffer.process import BufferProcess
from trinity.api.v1 import buffer_pb2 as pb
from trinity.config.plan.stage_plan import StagePlan

WORKING = "print('a word of the user'); return Advantages(samples.rewards - offset)"
FAILING = "return 1 / 0"
HANGING = "while True: pass"
ENDING = "import os; os._exit(3)"
WRONG = "return Advantages(samples.rewards[:1])"
NO_ADVANTAGES = "return samples.rewards"
HEAD = "from trinity.algorithm.advantage.samples import Advantages\n"
TAKE_THE_ID = """
INSERT INTO buffer.experience (tenant, experiment_id, stage, experience_id, assignment_id,
    segment_id, payload_id, state, finish_reason, metrics, content_hash)
SELECT tenant, experiment_id, stage, %(taken)s, gen_random_uuid(),
    segment_id, payload_id, 'filtered', finish_reason, metrics, content_hash
FROM buffer.experience
"""


def write_function(module: UsersModule, body: str) -> None:
    module.write(f"{HEAD}\ndef own(samples, *, offset=0.0):\n    {body}\n")


def plan_with(tmp_path: Path, name: str) -> StagePlan:
    plan = rollout_plan(tmp_path, total_steps=1, max_refill_rounds=0)
    return with_advantage(plan, name, offset=0.25)


async def rolled_out(buffer: Buffer, plan: StagePlan) -> None:
    await buffer.open(plan)
    await buffer.begin()
    await buffer.record(0)
    await buffer.finish_all((await buffer.lease()).assignments)


async def notice_of(buffer: Buffer) -> str:
    events = await buffer.events("notice")
    return next(one.notice.text for one in events if one.HasField("notice"))


async def test_a_users_function_gets_rewards_and_its_arguments(
    users_buffer: Buffer, users_module: UsersModule, tmp_path: Path
) -> None:
    write_function(users_module, WORKING)
    await rolled_out(users_buffer, plan_with(tmp_path, f"{users_module.name}.own"))
    _, rows = await users_buffer.batch(1)
    assert [row.advantage for row in rows] == [-0.25, 0.75] * 3


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (FAILING, "ZeroDivisionError: division by zero"),
        (HANGING, f"it did not answer within {LIMIT_SECONDS} s"),
        (ENDING, "the process that calls it ended"),
        (WRONG, "it gave an array of shape (1,) for 2 rewards"),
        (NO_ADVANTAGES, "it gave ndarray, where Advantages of"),
    ],
)
async def test_groups_that_a_function_fails_on_are_left_out_and_told_of_until_it_is_mended(
    users_buffer: Buffer, users_module: UsersModule, tmp_path: Path, body: str, reason: str
) -> None:
    write_function(users_module, body)
    plan = plan_with(tmp_path, f"{users_module.name}.own")
    await rolled_out(users_buffer, plan)
    notice = await notice_of(users_buffer)
    assert notice.startswith("explore step 1: the samples of")
    assert (
        f"advantage function {users_module.name}.own cannot be used on them" in notice
        and reason in notice
    )
    head = pb.BatchHead()
    while head.state != pb.BatchHead.STATE_CANCELLED:
        head, _ = await users_buffer.batch(1)
    assert "0 of 6 rows" in head.reason
    write_function(users_module, WORKING)
    await users_buffer.open(plan)
    await users_buffer.begin()
    head, rows = await users_buffer.batch(1)
    assert (head.state, len(rows)) == (pb.BatchHead.STATE_READY, ROWS)


async def test_one_group_that_hangs_does_not_take_others_with_it(
    users_buffer: Buffer, users_module: UsersModule, tmp_path: Path
) -> None:
    body = (
        "if samples.rewards[1] == 7.0:\n        while True: pass\n"
        "    return Advantages(samples.rewards)"
    )
    write_function(users_module, body)
    await users_buffer.open(plan_with(tmp_path, f"{users_module.name}.own"))
    await users_buffer.begin()
    await users_buffer.record(0)
    first, *others = (await users_buffer.lease()).assignments
    await users_buffer.finish_all([first], reward=7.0)
    await users_buffer.finish_all(others)
    head = pb.BatchHead()
    while head.state != pb.BatchHead.STATE_READY:
        head, rows = await users_buffer.batch(1)
    assert [row.advantage for row in rows] == [0.0, 1.0] * 2


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("users_functions.own", "there is no module 'users_functions'"),
        ("grop", "close to it: grpo"),
    ],
)
async def test_a_function_that_is_not_there_is_named_before_anything_is_rolled_out(
    users_buffer: Buffer, tmp_path: Path, name: str, reason: str
) -> None:
    with pytest.raises(grpc.aio.AioRpcError, match=reason) as error:
        await users_buffer.open(plan_with(tmp_path, name))
    assert error.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert name in (error.value.details() or "")


async def test_a_group_that_cannot_be_committed_is_left_out_and_the_others_go_on(
    own_buffer: Buffer, own_process: BufferProcess, tmp_path: Path
) -> None:
    await own_buffer.open(rollout_plan(tmp_path, total_steps=1, max_refill_rounds=0))
    await own_buffer.begin()
    await own_buffer.record(0)
    first, *others = (await own_buffer.lease()).assignments
    result = own_buffer.complete(first, 0)
    await own_buffer.settle(result)
    taken = derived_id(result.experiences[0].id, "grpo", 0)
    with psycopg.connect(own_process.dsn, autocommit=True) as connection:
        connection.execute(TAKE_THE_ID, {"taken": taken})
    await own_buffer.settle(own_buffer.complete(first, 1))
    await own_buffer.finish_all(others)
    head = pb.BatchHead()
    while head.state != pb.BatchHead.STATE_READY:
        head, rows = await own_buffer.batch(1)
    assert {row.experience.eid.position for row in rows} == {1, 2}
    notice = await notice_of(own_buffer)
    assert "cannot be used on them: " in notice
    assert "duplicate key" in notice
