"""Experience operators on a running buffer: what reaches the trainer, and what is drawn instead."""

from pathlib import Path

import psycopg
import pytest

from tests.integration.buffer.conftest import LIMIT_SECONDS, UsersModule
from tests.integration.buffer.harness import Buffer
from tests.integration.buffer.made import Made
from tests.integration.buffer.plans import ROWS, rollout_plan, with_operators
from tests.integration.buffer.process import BufferProcess
from tests.support.data_juicer_server import LongEnough, served
from trinity.api.v1 import buffer_pb2 as pb
from trinity.config.plan.parts import ResolvedOperator
from trinity.config.plan.stage_plan import StagePlan
from trinity.data.codec import experience_from_proto
from trinity.types import FinishReason, JsonValue
from trinity.user_code.data_juicer import server

LEFT_OUT = """
SELECT position, run, reason FROM buffer.experience
WHERE experiment_id = %s AND state = 'filtered' ORDER BY position, run
"""
STORED = """
SELECT revision, reward, shaped_reward, is_masked FROM buffer.experience
WHERE experiment_id = %s AND position = 0 ORDER BY run, revision
"""
HEAD = """
from trinity.algorithm.advantage.needs import Needs, needs
from trinity.operators.rollouts import Changes, Rollouts

@needs(Needs(content=True))
def own(rollouts: Rollouts, *, word: str = "") -> Changes:
"""


async def began(buffer: Buffer, plan: StagePlan) -> list[pb.Assignment]:
    await buffer.open(plan)
    await buffer.begin()
    await buffer.record(0)
    return list((await buffer.lease()).assignments)


async def finish(buffer: Buffer, assignment: pb.Assignment, *made: Made) -> None:
    await buffer.settle(*(buffer.complete(assignment, run, one) for run, one in enumerate(made)))


async def test_operators_run_in_order_and_the_trainer_gets_what_they_leave(
    buffer: Buffer, process: BufferProcess, tmp_path: Path
) -> None:
    rules: list[JsonValue] = [{"stats_key": "quality", "op_type": "MUL", "weight": 2.0}]
    plan = with_operators(
        rollout_plan(tmp_path, total_steps=1, max_refill_rounds=0),
        "reward_filter",
        "reward_shaping_mapper",
        "mask_response_truncated",
        reward_filter={"threshold": 0.0},
        reward_shaping_mapper={"reward_shaping_configs": rules},
    )
    first, second, third = await began(buffer, plan)
    cut = Made(reward=0.5, info={"quality": 3.0}, finish_reason=FinishReason.LENGTH)
    await finish(buffer, first, Made(reward=1.0, info={"quality": 0.5}), cut)
    await finish(buffer, second, Made(reward=-1.0), Made(reward=1.0))
    await finish(buffer, third, Made(reward=-1.0), Made(reward=-1.0))
    head, rows = await buffer.batch(1)
    assert [row.experience.eid.position for row in rows] == [0, 0, 1]
    assert [row.experience.reward for row in rows] == [1.0, 3.0, 1.0]
    masks = [experience_from_proto(row.experience).sequence.action_mask for row in rows]
    assert [bool(mask.any()) for mask in masks] == [True, False, True]
    assert all(len(mask) == 3 for mask in masks)
    assert [row.advantage for row in rows] == pytest.approx([-(2**-0.5), 2**-0.5, 1.0], abs=1e-5)
    assert (await buffer.batch(1))[1] == rows, "asked again, also by another life of the trainer"
    figures = head.metrics
    assert figures["experience_pipeline/reward_filter/filtered_count"] == 3.0
    assert figures["experience_pipeline/filtered_count"] == 3.0
    assert figures["experience_pipeline/masked_truncated_count"] == 1.0
    assert figures["experience_pipeline/reward_diff/max"] == 1.25
    with psycopg.connect(process.dsn) as connection:
        left_out = connection.execute(LEFT_OUT, [buffer.key.experiment_id]).fetchall()
        stored = connection.execute(STORED, [buffer.key.experiment_id]).fetchall()
    assert left_out == [(p, r, "its reward is below 0") for p, r in ((1, 0), (2, 0), (2, 1))]
    assert stored == [
        (0, 1.0, None, False),
        (1, 1.0, None, False),
        (0, 0.5, None, False),
        (1, 0.5, 3.0, True),
    ]


async def test_groups_of_one_mind_give_their_place_to_other_tasks_before_the_step_is_trained(
    buffer: Buffer, tmp_path: Path
) -> None:
    plan = with_operators(
        rollout_plan(tmp_path, total_steps=1, max_refill_rounds=4),
        "dapo_dynamic_sampling",
        dapo_dynamic_sampling={"metric_key": "solved", "correct_threshold": 0.5},
    )
    first, second, third = await began(buffer, plan)
    for one, solved in ((first, 0.0), (second, 1.0)):
        await finish(buffer, one, *[Made(metrics={"solved": solved}) for _ in one.runs])
    await finish(buffer, third, Made(metrics={"solved": 1.0}), Made(metrics={"solved": 0.0}))
    waiting, _ = await buffer.batch(1, wait_seconds=1)
    assert waiting.state == pb.BatchHead.STATE_WAITING
    flat, good = (await buffer.lease()).assignments
    assert [one.position for one in (flat, good)] == [3, 4]
    assert {one.required_version for one in (flat, good)} == {0}
    await finish(buffer, flat, *[Made(metrics={"solved": 0.0})] * 2)
    await finish(buffer, good, Made(metrics={"solved": 0.0}), Made(metrics={"solved": 1.0}))
    assert (await buffer.batch(1, wait_seconds=1))[0].state == pb.BatchHead.STATE_WAITING
    [last] = (await buffer.lease()).assignments
    await finish(buffer, last, Made(metrics={"solved": 1.0}), Made(metrics={"solved": 0.0}))
    head, rows = await buffer.batch(1)
    assert [row.experience.eid.position for row in rows] == [2, 2, 4, 4, 5, 5]
    assert head.metrics["experience_pipeline/dropped_all_wrong"] == 2.0
    assert head.metrics["experience_pipeline/dropped_all_correct"] == 1.0
    assert head.metrics["experience_pipeline/dapo_dynamic_sampling/filtered_count"] == 6.0


@pytest.mark.parametrize("sync_offset", [0, 1])
async def test_a_stage_that_loses_everything_is_named_and_ends_by_policy(
    buffer: Buffer, tmp_path: Path, sync_offset: int
) -> None:
    plan = rollout_plan(
        tmp_path, total_steps=1, max_refill_rounds=2, short_batch="fail", sync_offset=sync_offset
    )
    assignments = await began(buffer, with_operators(plan, "dapo_dynamic_sampling"))
    for _ in range(2):
        await buffer.finish_all(assignments, reward=0.0)
        head, _ = await buffer.batch(1, wait_seconds=1)
        assert head.state == pb.BatchHead.STATE_WAITING
        assignments = list((await buffer.lease()).assignments)
        assert len(assignments) == 3
    status = await buffer.status()
    assert status.num_recent_lost == status.num_recent_runs == 12
    assert status.recent_loss == "the samples of its group are all correct or all wrong"
    await buffer.finish_all(assignments, reward=0.0)
    head = pb.BatchHead()
    while head.state != pb.BatchHead.STATE_CANCELLED:
        head, _ = await buffer.batch(1)
    assert head.reason.startswith("train step 1 has 0 of 6 rows after 2 rounds of refill")
    assert "all correct or all wrong" in head.reason


def own_plan(module: UsersModule, directory: Path, body: str, **arguments: JsonValue) -> StagePlan:
    module.write(f"{HEAD}    {body}\n")
    plan = rollout_plan(directory, total_steps=1, max_refill_rounds=0)
    name = f"{module.name}.own"
    return plan.model_copy(update={"operators": (ResolvedOperator(name=name, args=arguments),)})


async def test_a_users_operator_reads_what_samples_say_in_its_own_process(
    users_buffer: Buffer, users_module: UsersModule, tmp_path: Path
) -> None:
    body = (
        "texts = [one.response_text for one in rollouts.contents]\n"
        "    return Changes(left_out=[text.endswith(word) for text in texts], reason='bad word')"
    )
    assignments = await began(users_buffer, own_plan(users_module, tmp_path, body, word="/1"))
    await users_buffer.finish_all(assignments)
    head, rows = await users_buffer.batch(1)
    assert [row.experience.eid.run for row in rows] == [0, 0, 0]
    assert head.metrics[f"experience_pipeline/{users_module.name}.own/filtered_count"] == 3.0


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("return 1 / 0", "ZeroDivisionError: division by zero"),
        ("while True: pass", f"it did not answer within {LIMIT_SECONDS} s"),
        ("import os; os._exit(3)", "the process that calls it ended"),
        ("b = bytearray(2**30)", "it needs more than the 512 MiB of memory it may take"),
        ("return rollouts.rewards", "it gave ndarray, where Changes of"),
        ("return Changes(left_out=[True] * 5)", "its left_out has the shape (5,) for 2 samples"),
        ("return Changes(rewards=[0.0, float('nan')])", "it gave rewards that are not finite"),
    ],
)
async def test_groups_that_an_operator_fails_on_are_set_aside_and_the_buffer_goes_on(
    users_buffer: Buffer, users_module: UsersModule, tmp_path: Path, body: str, reason: str
) -> None:
    working = "return Changes()"
    harm = f"if rollouts.rewards[1] == 7.0:\n        {body}\n    {working}"
    first, *others = await began(users_buffer, own_plan(users_module, tmp_path, harm))
    await users_buffer.finish_all([first], reward=7.0)
    await users_buffer.finish_all(others)
    head = pb.BatchHead()
    while head.state != pb.BatchHead.STATE_READY:
        head, rows = await users_buffer.batch(1)
    assert {row.experience.eid.position for row in rows} == {1, 2}
    events = await users_buffer.events("notice")
    notice = next(one.notice.text for one in events if one.HasField("notice"))
    assert notice.startswith("explore step 1: the samples of 1 tasks are left out, operator users_")
    assert reason in notice


async def test_groups_wait_for_data_juicer_and_lose_nothing_while_it_is_away(
    buffer: Buffer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "OperatorSession", LongEnough)
    with served(server.SessionStore()) as url:
        pass
    arguments: dict[str, JsonValue] = {
        "server_url": url,
        "operators": [{"text_length_filter": {"min_len": 5}}],
    }
    plan = rollout_plan(tmp_path, total_steps=1, max_refill_rounds=0)
    plan = with_operators(plan, "data_juicer", data_juicer=arguments)
    await buffer.finish_all(await began(buffer, plan))
    assert (await buffer.batch(1, wait_seconds=3))[0].state == pb.BatchHead.STATE_WAITING
    with served(server.SessionStore(), int(url.rpartition(":")[2])):
        head, rows = await buffer.batch(1)
    assert (head.state, len(rows)) == (pb.BatchHead.STATE_READY, ROWS)


SURE = (
    HEAD
    + """
    whole = [rollouts.experience(i).sequence for i in range(len(rollouts.rewards))]
    sure_N = np.array([sequence.rollout_logprobs.mean() > -1.0 for sequence in whole])
    tokens = sum(len(sequence.tokens) for sequence in whole)
    return Changes(left_out=~sure_N, metrics={"tokens": np.array([float(tokens)])})
"""
)


async def test_an_operator_reads_log_probabilities_and_tokens_of_recorded_samples(
    users_buffer: Buffer, users_module: UsersModule, tmp_path: Path
) -> None:
    users_module.write("import numpy as np" + SURE)
    plan = rollout_plan(tmp_path, total_steps=1, max_refill_rounds=0)
    work = await began(users_buffer, with_operators(plan, f"{users_module.name}.own"))
    for task in work:
        await finish(users_buffer, task, Made(reward=1.0, logprob=-0.5), Made(logprob=-2.0))
    head, rows = await users_buffer.batch(1, wait_seconds=30)
    assert [row.experience.eid.run for row in rows] == [0] * len(work), head.reason
    assert head.metrics["experience_pipeline/tokens/mean"] == 5.0 * 2
