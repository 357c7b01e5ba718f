"""What becomes of groups: left out with a reason, replaced by copies, measured in figures."""

from pathlib import Path

import numpy as np
import psycopg
import pytest

from services.buffer.store.experiences import derived_id
from tests.integration.buffer.harness import Buffer
from tests.integration.buffer.made import Made
from tests.integration.buffer.plans import ROWS, rollout_plan, with_advantage
from tests.integration.buffer.process import BufferProcess
from trinity.algorithm.advantage.gigpo import gigpo
from trinity.algorithm.advantage.samples import Samples
from trinity.api.v1 import buffer_pb2 as pb
from trinity.config.plan.stage_plan import StagePlan

DERIVED = """
SELECT parent_id, experience_id, position, advantage, state FROM buffer.experience
WHERE experiment_id = %s AND parent_id IS NOT NULL ORDER BY position, run, ready_number
"""
LEFT_OUT = """
SELECT position, reason FROM buffer.experience
WHERE experiment_id = %s AND state = 'filtered' ORDER BY position, run
"""
FLAT = "the rewards of its group have a standard deviation of at most 0"


async def began(buffer: Buffer, plan: StagePlan) -> list[pb.Assignment]:
    await buffer.open(plan)
    await buffer.begin()
    await buffer.record(0)
    return list((await buffer.lease()).assignments)


async def finish(buffer: Buffer, assignment: pb.Assignment, *rewards: float) -> None:
    results = [
        buffer.complete(assignment, run, Made(reward=reward)) for run, reward in enumerate(rewards)
    ]
    await buffer.settle(*results)


async def test_groups_without_spread_are_left_out_and_their_place_is_given_to_others(
    buffer: Buffer, process: BufferProcess, tmp_path: Path
) -> None:
    plan = rollout_plan(tmp_path, total_steps=1)
    first, second, third = await began(buffer, with_advantage(plan, "grpo", std_threshold=0.0))
    await finish(buffer, first, 0.1, 0.1)
    await finish(buffer, second, 0.0, 1.0)
    await finish(buffer, third, 1.0, 1.0)
    head, _ = await buffer.batch(1, wait_seconds=1)
    assert head.state == pb.BatchHead.STATE_WAITING
    refills = (await buffer.lease()).assignments
    assert [one.position for one in refills] == [3, 4]
    for one in refills:
        await finish(buffer, one, 1.0, 0.0)
    head, rows = await buffer.batch(1)
    assert [row.experience.eid.position for row in rows] == [1, 1, 3, 3, 4, 4]
    with psycopg.connect(process.dsn) as connection:
        found = connection.execute(LEFT_OUT, [buffer.key.experiment_id]).fetchall()
    assert found == [(0, FLAT), (0, FLAT), (2, FLAT), (2, FLAT)]
    pipeline = {
        name.removeprefix("experience_pipeline/"): value
        for name, value in head.metrics.items()
        if name.startswith("experience_pipeline/")
    }
    assert pipeline["experience_count"] == 6 and pipeline["filtered_count"] == 4
    assert pipeline["skipped_group_ratio"] == pytest.approx(0.4)
    assert pipeline["group_advantages/reward_mean/max"] == 1.0
    assert pipeline["group_advantages/reward_mean/mean"] == pytest.approx((0.1 + 0.5 * 3 + 1) / 5)
    assert pipeline["group_advantages/reward_std/min"] == 0.0


async def test_copies_of_another_group_stand_in_for_one_that_is_left_out(
    buffer: Buffer, process: BufferProcess, tmp_path: Path
) -> None:
    plan = rollout_plan(tmp_path, total_steps=1, max_refill_rounds=0)
    plan = with_advantage(plan, "grpo", std_threshold=0.0, duplicate_experiences=True)
    first, second, third = await began(buffer, plan)
    await finish(buffer, first, 0.0, 0.0)
    await finish(buffer, second, 0.0, 1.0)
    await finish(buffer, third, 1.0, 1.0)
    head, rows = await buffer.batch(1)
    assert (head.state, len(rows)) == (pb.BatchHead.STATE_READY, ROWS)
    assert [row.experience.eid.position for row in rows] == [1] * ROWS
    assert [round(row.advantage, 3) for row in rows] == [-0.707] * 3 + [0.707] * 3
    with psycopg.connect(process.dsn) as connection:
        derived = connection.execute(DERIVED, [buffer.key.experiment_id]).fetchall()
    parents = {str(parent) for parent, *_ in derived}
    assert {str(own) for _, own, *_ in derived} == {
        derived_id(parent, "grpo", ordinal) for parent in parents for ordinal in range(3)
    }
    assert head.metrics["experience_pipeline/filtered_count"] == 4
    assert head.metrics["experience_pipeline/experience_count"] == ROWS


@pytest.mark.parametrize(("unit", "expected"), [("run", 0.5), ("sample", 0.25)])
async def test_a_run_of_several_samples_counts_once_unless_samples_are_counted(
    buffer: Buffer, tmp_path: Path, unit: str, expected: float
) -> None:
    plan = rollout_plan(tmp_path, total_steps=1, train_batch_size=12)
    assignments = await began(buffer, with_advantage(plan, "dr_grpo", unit=unit))
    for one in assignments:
        right, wrong = Made(reward=1.0), Made(reward=0.0)
        await buffer.settle(
            buffer.complete(one, 0, right, right, right), buffer.complete(one, 1, wrong)
        )
    _, rows = await buffer.batch(1)
    advantages = [row.advantage for row in rows]
    assert advantages == [expected, expected, expected, expected - 1] * 3
    texts = [event.notice.text for event in await buffer.events("batch")]
    told = [text for text in texts if "counts each run once" in text]
    assert len(told) == (unit == "sample")
    assert all("`dr_grpo` compares samples" in text for text in told)


async def test_runs_of_several_steps_are_compared_by_what_their_info_says(
    buffer: Buffer, tmp_path: Path
) -> None:
    plan = rollout_plan(tmp_path, total_steps=1, train_batch_size=12)
    assignments = await began(buffer, with_advantage(plan, "gigpo", gamma=0.5))
    rewards = np.random.default_rng(3).random((3, 2, 2)).round(2)
    states = np.array([[["s", "t"], ["s", "u"]], [["s", "t"], ["", "t"]], [["v", "w"], ["v", "x"]]])
    for one, own_rewards, own_states in zip(assignments, rewards, states, strict=True):
        for run in one.runs:
            steps = [
                Made(reward=9.0, info={"step_reward": reward, "env_state_hash": state or None})
                for reward, state in zip(own_rewards[run].tolist(), own_states[run], strict=True)
            ]
            await buffer.settle(buffer.complete(one, run, *steps))
    _, rows = await buffer.batch(1)
    numbers = {state: number for number, state in enumerate(["s", "t", "u", "v", "w", "x"])}
    samples = Samples(
        rewards=np.full(12, 9.0),
        groups=np.repeat(np.arange(3), 4),
        runs=np.tile(np.repeat(np.arange(2), 2), 3),
        steps=np.tile(np.arange(2), 6),
        lots=np.zeros(12),
        mean_logprobs=np.zeros(12),
        step_rewards=rewards.reshape(-1),
        states=np.array([numbers.get(state, -1) for state in states.reshape(-1).tolist()]),
    )
    expected = gigpo(samples, gamma=0.5).values
    assert [row.advantage for row in rows] == pytest.approx(expected.tolist(), rel=1e-6)


async def test_log_probabilities_are_read_where_ranks_are_wanted(
    buffer: Buffer, tmp_path: Path
) -> None:
    plan = rollout_plan(tmp_path, total_steps=1)
    assignments = await began(buffer, with_advantage(plan, "grpo", rank_penalty=1.0, epsilon=0.0))
    for one in assignments:
        likely, unlikely = Made(reward=1.0, logprob=-0.1), Made(reward=1.0, logprob=-2.0)
        await buffer.settle(buffer.complete(one, 0, likely), buffer.complete(one, 1, unlikely))
    _, rows = await buffer.batch(1)
    # Compared are 1 - 1/2 and 1: their mean is 0.75, their deviation 0.25 times the root of 2.
    assert [row.advantage for row in rows] == pytest.approx([1 / np.sqrt(2)] * ROWS, rel=1e-6)


async def test_groups_pass_through_where_the_trainer_computes_the_advantage(
    buffer: Buffer, tmp_path: Path
) -> None:
    plan = with_advantage(rollout_plan(tmp_path, total_steps=1), "rloo", in_trainer=True)
    for one in await began(buffer, plan):
        await finish(buffer, one, 0.0, 1.0)
    _, rows = await buffer.batch(1)
    assert [row.advantage for row in rows] == [0.0] * ROWS
