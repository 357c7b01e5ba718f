"""Rewards that come later: samples wait for them, and their groups with them."""

import json
from pathlib import Path
from typing import Unpack

import grpc
import psycopg
import pytest

from tests.integration.buffer.calls import CALL_SECONDS
from tests.integration.buffer.harness import Buffer
from tests.integration.buffer.looking import Looking
from tests.integration.buffer.made import Made
from tests.integration.buffer.plans import ROWS, Sizes, rollout_plan, with_advantage
from tests.support.forking.starts import run_module
from trinity.api.v1 import buffer_pb2
from trinity.api.v1 import query_pb2 as pb
from trinity.config.plan.stage_plan import StagePlan
from trinity.types import FinishReason

AWAITING = pb.EXPERIENCE_STATE_AWAITING
WAITING = buffer_pb2.BatchHead.STATE_WAITING


def plan_of(tmp_path: Path, **values: Unpack[Sizes]) -> StagePlan:
    return rollout_plan(tmp_path, await_feedback=True, **values)


async def explored(buffer: Buffer, plan: StagePlan, *rewards: float | None) -> None:
    """The runs of each task of the first explore step with these rewards."""
    await buffer.open(plan)
    await buffer.begin()
    await buffer.record(0)
    work = (await buffer.lease()).assignments
    await buffer.settle(
        *(buffer.complete(one, run, Made(reward=rewards[run])) for one in work for run in one.runs)
    )


async def give(looking: Looking, *given: pb.Feedback) -> pb.GiveFeedbackResponse:
    request = pb.GiveFeedbackRequest(key=looking.key, feedback=given)
    answer: pb.GiveFeedbackResponse = await looking.stub.GiveFeedback(request, timeout=CALL_SECONDS)
    return answer


async def awaiting(looking: Looking) -> list[pb.ExperienceRecord]:
    return await looking.list(pb.ExperienceFilter(states=[AWAITING]))


def reward(sample: pb.ExperienceRecord, value: float) -> pb.Feedback:
    return pb.Feedback(experience_id=sample.id, reward=value, reward_parts={"human": value})


async def test_a_group_waits_for_its_rewards_and_is_trained_on_with_them(
    buffer: Buffer, looking: Looking, tmp_path: Path
) -> None:
    await explored(buffer, plan_of(tmp_path), 0.0, None)
    head, _ = await buffer.batch(1, wait_seconds=0)
    assert (head.state, head.reason) == (
        WAITING,
        "explore step 1: 3 groups wait for rewards that come later (`trinity feedback` gives them)",
    )
    waiting = await awaiting(looking)
    assert [(one.eid.position, one.eid.run) for one in waiting] == [(0, 1), (1, 1), (2, 1)]
    answer = await give(looking, *(reward(one, 1.0) for one in waiting))
    assert (answer.num_set, answer.num_known, list(answer.refused)) == (3, 0, [])
    head, rows = await buffer.batch(1)
    assert head.num_rows == ROWS
    assert [round(row.advantage, 3) for row in rows] == [-0.707, 0.707] * 3
    assert [row.experience.reward for row in rows] == [0.0, 1.0] * 3
    assert rows[1].experience.reward_parts["human"] == 1.0
    assert rows[1].experience.reward_revision == 1
    assert head.metrics["reward/mean"] == 0.5
    assert head.metrics["rollout/human/mean"] == 1.0


async def test_a_group_goes_on_when_its_last_reward_has_come(
    buffer: Buffer, looking: Looking, tmp_path: Path
) -> None:
    await explored(buffer, plan_of(tmp_path, train_batch_size=2, sync_offset=1), None, None)
    first, second, *_ = await awaiting(looking)
    await give(looking, reward(first, 0.0))
    head, _ = await buffer.batch(1, wait_seconds=0.5)
    assert head.state == WAITING
    await give(looking, reward(second, 1.0))
    _, rows = await buffer.batch(1)
    assert [row.experience.eid.position for row in rows] == [0, 0]


async def test_feedback_may_be_given_again_and_never_changes(
    buffer: Buffer, looking: Looking, tmp_path: Path
) -> None:
    await explored(buffer, plan_of(tmp_path), 0.0, None)
    sample, *_ = await awaiting(looking)
    assert (await give(looking, reward(sample, 1.0))).num_set == 1
    again = await give(looking, reward(sample, 1.0))
    assert (again.num_set, again.num_known) == (0, 1)
    unknown = pb.Feedback(experience_id=sample.assignment_id, reward=1.0)
    answer = await give(looking, reward(sample, 0.5), unknown)
    assert [(one.experience_id, one.reason) for one in answer.refused] == [
        (sample.id, "its reward is 1 already"),
        (sample.assignment_id, "there is no such sample in the stage"),
    ]


async def test_what_is_never_trained_on_waits_for_nothing(
    buffer: Buffer, looking: Looking, tmp_path: Path
) -> None:
    await buffer.open(plan_of(tmp_path, total_steps=1))
    await buffer.begin()
    await buffer.record(0)
    first, *others = (await buffer.lease()).assignments
    aborted = Made(reward=None, finish_reason=FinishReason.ABORT)
    await buffer.settle(buffer.complete(first, 0, aborted), buffer.complete(first, 1, Made()))
    await buffer.finish_all(others)
    assert await awaiting(looking) == []


async def test_a_function_that_sees_a_whole_explore_step_waits_for_all_of_it(
    buffer: Buffer, looking: Looking, tmp_path: Path
) -> None:
    plan = with_advantage(plan_of(tmp_path), "grpo", std_cal_level="batch")
    await buffer.open(plan)
    await buffer.begin()
    await buffer.record(0)
    first, *others = (await buffer.lease()).assignments
    await buffer.finish_all(others)
    await buffer.settle(
        buffer.complete(first, 0, Made(reward=0.0)), buffer.complete(first, 1, Made(reward=None))
    )
    head, _ = await buffer.batch(1, wait_seconds=0.5)
    assert head.state == WAITING
    assert "1 further ones wait for their rewards" in head.reason
    [sample] = await awaiting(looking)
    await give(looking, reward(sample, 1.0))
    head, _ = await buffer.batch(1)
    assert head.num_rows == ROWS


async def test_a_sample_whose_reward_does_not_come_in_time_is_left_out(
    buffer: Buffer, looking: Looking, tmp_path: Path
) -> None:
    plan = plan_of(tmp_path, feedback_timeout=0.2, max_refill_rounds=0)
    await explored(buffer, plan, 1.0, None)
    head, rows = await buffer.batch(1, wait_seconds=30)
    assert [row.experience.eid.run for row in rows] == [0, 0, 0]
    assert head.num_rows == 3
    left_out = await looking.list(pb.ExperienceFilter(states=[pb.EXPERIENCE_STATE_FILTERED]))
    reason = "no reward came in 0.2 s (`buffer.feedback_timeout`)"
    assert [one.reason for one in left_out] == [reason] * 3
    notices = [one.notice.text for one in await buffer.events("notice", 1)]
    assert f"3 samples of 3 tasks are left out: {reason}" in notices
    answer = await give(looking, reward(left_out[0], 1.0))
    assert answer.refused[0].reason == "it is filtered and waits for no reward"


async def test_excluding_what_a_group_waits_for_lets_it_go_on(
    buffer: Buffer, looking: Looking, tmp_path: Path
) -> None:
    await explored(buffer, plan_of(tmp_path, max_refill_rounds=0), 1.0, None)
    answer = await looking.exclude(pb.ExperienceFilter(states=[AWAITING]), "nobody will look")
    assert answer.num_excluded == 3
    head, _ = await buffer.batch(1)
    assert head.num_rows == 3


async def test_of_a_sample_that_is_deleted_nothing_is_left(
    buffer: Buffer, looking: Looking, tmp_path: Path, shared_dsn: str
) -> None:
    await explored(buffer, plan_of(tmp_path), None, 0.0)
    waiting = await awaiting(looking)
    await give(looking, *(reward(one, 1.0) for one in waiting))
    await looking.until(6, pb.ExperienceFilter(states=[pb.EXPERIENCE_STATE_READY]))
    answer = await looking.delete(pb.ExperienceFilter(task_index=0), "private data")
    assert answer.num_deleted == 2
    query = "SELECT count(*) FROM buffer.payload WHERE experiment_id = %s"
    with psycopg.connect(shared_dsn) as connection:
        found = connection.execute(query, [buffer.key.experiment_id]).fetchone()
    assert found == (4,)


@pytest.mark.parametrize("number", [float("nan"), 1e300])
async def test_a_reward_that_training_cannot_represent_is_refused(
    buffer: Buffer, looking: Looking, tmp_path: Path, number: float
) -> None:
    await explored(buffer, plan_of(tmp_path), 0.0, None)
    sample, *_ = await awaiting(looking)
    with pytest.raises(grpc.aio.AioRpcError, match="is not a finite number") as error:
        await give(looking, reward(sample, number))
    assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT


def test_a_line_that_is_no_feedback_is_named(tmp_path: Path) -> None:
    file = tmp_path / "rewards.jsonl"
    file.write_text(json.dumps({"id": "x", "reward": 1.0}) + "\n{}\n")
    done = run_module("trinity.cli.main", "feedback", str(file))
    assert done.returncode == 2
    assert "rewards.jsonl:2 is not" in done.stderr
