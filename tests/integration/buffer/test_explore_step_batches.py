"""Runs give any number of samples, and a train step is one explore step of them."""

import random
from collections.abc import Mapping, Sequence
from pathlib import Path

import psycopg
import pytest

from tests.integration.buffer.harness import Buffer, talk_to
from tests.integration.buffer.made import Made
from tests.integration.buffer.plans import BATCH_SIZE, REPEAT_TIMES, ROWS, rollout_plan
from tests.integration.buffer.process import BufferProcess
from trinity.api.v1 import buffer_pb2 as pb
from trinity.config.plan.stage_plan import StagePlan

NUM_STEPS = 3
SAMPLES = random.Random(5).choices((1, 1, 2, 3), k=NUM_STEPS * ROWS)
"""Samples of each run, in the order of explore steps, tasks and runs."""
LEFT = "SELECT count(*) FROM buffer.experience WHERE experiment_id = %s AND state = 'ready'"


def plan_of(
    tmp_path: Path,
    unit: str,
    *,
    sync_offset: int = 0,
    sync_interval: int = 1,
    max_refill_rounds: int = 3,
) -> StagePlan:
    return rollout_plan(
        tmp_path,
        total_steps=NUM_STEPS,
        sync_offset=sync_offset,
        sync_interval=sync_interval,
        train_step=unit,
        max_refill_rounds=max_refill_rounds,
    )


def num_samples(assignment: pb.Assignment, run: int) -> int:
    place = (assignment.explore_step - 1) * ROWS + assignment.position * REPEAT_TIMES + run
    return SAMPLES[place % len(SAMPLES)]


def of_explore_step(step: int) -> list[str]:
    """The samples of an explore step in order, by the text of their answers."""
    return [
        f"{step}/{position}/{run}"
        for position in range(BATCH_SIZE)
        for run in range(REPEAT_TIMES)
        for _ in range(num_samples(pb.Assignment(explore_step=step, position=position), run))
    ]


async def begin(buffer: Buffer, plan: StagePlan) -> None:
    await buffer.open(plan)
    await buffer.begin()
    await buffer.record(0)


async def finish(buffer: Buffer, assignments: Sequence[pb.Assignment], seed: int = 0) -> None:
    """Runs end one by one, in an order of their own."""
    runs = [(one, run) for one in assignments for run in one.runs]
    random.Random(seed).shuffle(runs)
    for one, run in runs:
        made = [Made(reward=float(run))] * num_samples(one, run)
        await buffer.settle(buffer.complete(one, run, *made))


def texts(rows: Sequence[pb.BatchRow]) -> list[str]:
    return [row.experience.sequence.response_text for row in rows]


Heads = list[pb.BatchHead]


async def train_all(buffer: Buffer, plan: StagePlan) -> tuple[Heads, list[list[str]]]:
    """Explores and trains a whole stage step by step; the samples of each batch."""
    await begin(buffer, plan)
    heads, batches = [], []
    for step in range(1, NUM_STEPS + 1):
        await finish(buffer, (await buffer.lease(wait_seconds=0.2)).assignments, seed=step)
        head, rows = await buffer.batch(step)
        assert head.state == pb.BatchHead.STATE_READY
        heads.append(head)
        batches.append(texts(rows))
        await buffer.report(step)
        await buffer.record(step)
    return heads, batches


def figures(head: pb.BatchHead) -> Mapping[str, float]:
    names = ("sample/num_explore_steps", "sample/num_runs", "sample/model_version_drift/max")
    return {name.split("/")[1]: head.metrics[name] for name in names}


async def test_each_explore_step_is_trained_whole_and_on_policy(
    buffer: Buffer, process: BufferProcess, tmp_path: Path
) -> None:
    heads, batches = await train_all(buffer, plan_of(tmp_path, "explore_step"))
    assert batches == [of_explore_step(step) for step in (1, 2, 3)]
    assert sum(map(len, batches)) == sum(SAMPLES)
    on_policy = {"num_explore_steps": 1, "num_runs": ROWS, "model_version_drift": 0}
    assert [figures(head) for head in heads] == [on_policy] * NUM_STEPS
    assert await num_left(buffer, process) == 0
    texts = [event.notice.text for event in await buffer.events("batch")]
    assert not [text for text in texts if "buffer.train_step" in text]


async def num_left(buffer: Buffer, process: BufferProcess) -> int:
    with psycopg.connect(process.dsn) as connection:
        [(number,)] = connection.execute(LEFT, [buffer.key.experiment_id]).fetchall()
    return int(number)


async def test_batches_of_rows_mix_explore_steps_and_leave_samples_and_it_is_said(
    buffer: Buffer, process: BufferProcess, tmp_path: Path
) -> None:
    """The control: what explore steps as train steps are for."""
    heads, batches = await train_all(buffer, plan_of(tmp_path, "rows"))
    assert sum(map(len, batches)) == NUM_STEPS * ROWS < sum(SAMPLES)
    assert max(head.metrics["sample/num_explore_steps"] for head in heads) == 2
    assert max(head.metrics["sample/model_version_drift/max"] for head in heads) > 0
    assert await num_left(buffer, process) > 0
    told = [event.notice.text for event in await buffer.events("batch")]
    assert [text for text in told if "`buffer.train_step: explore_step` trains each" in text]


@pytest.mark.parametrize("unit", ["explore_step", "rows"])
async def test_what_a_batch_holds_does_not_depend_on_arrival_even_with_an_offset(
    process: BufferProcess, tmp_path: Path, unit: str
) -> None:
    """Rows as they come, the control, are taken in the order in which groups end."""
    seen = []
    for seed in range(2):
        async with talk_to(process) as buffer:
            await begin(buffer, plan_of(tmp_path, unit, sync_offset=1))
            work = (await buffer.lease()).assignments
            assert {one.explore_step for one in work} == {1, 2}
            await finish(buffer, work, seed=seed)
            seen.append([texts((await buffer.batch(step))[1]) for step in (1, 2)])
    assert (seen[0] == seen[1]) == (unit == "explore_step")
    if unit == "explore_step":
        assert seen[0] == [of_explore_step(1), of_explore_step(2)]


async def test_with_one_sample_a_run_both_are_the_same(
    process: BufferProcess, tmp_path: Path
) -> None:
    seen = []
    for unit in ("rows", "explore_step"):
        async with talk_to(process) as buffer:
            await begin(buffer, plan_of(tmp_path, unit))
            for step in (1, 2):
                await buffer.finish_all((await buffer.lease()).assignments)
                head, rows = await buffer.batch(step)
                seen.append((texts(rows), [row.advantage for row in rows], figures(head)))
                await buffer.record(step)
    assert seen[:2] == seen[2:]


async def test_an_explore_step_waits_for_its_own_runs_and_gets_its_own_further_tasks(
    buffer: Buffer, tmp_path: Path
) -> None:
    """With two explore steps of the same weights, the second may end first."""
    plan = plan_of(tmp_path, "explore_step", sync_interval=2, max_refill_rounds=1)
    await begin(buffer, plan)
    work = (await buffer.lease()).assignments
    assert sorted({one.explore_step for one in work}) == [1, 2]
    first, *rest = (one for one in work if one.explore_step == 1)
    await finish(buffer, [*rest, *(one for one in work if one.explore_step == 2)])
    head, _ = await buffer.batch(1, wait_seconds=0.1)
    assert head.reason.startswith("explore step 1: 1 of 3 assignments still open")
    tried = [(run, attempt) for run in first.runs for attempt in range(2)]
    await buffer.settle(*(buffer.fail(first, run, attempt) for run, attempt in tried))
    await buffer.batch(1, wait_seconds=0.1)
    (further,) = (await buffer.lease()).assignments
    assert (further.explore_step, further.position, further.required_version) == (1, 3, 0)
    await finish(buffer, [further])
    _, rows = await buffer.batch(1)
    assert {text[:4] for text in texts(rows)} == {"1/1/", "1/2/", "1/3/"}
    _, rows = await buffer.batch(2)
    assert texts(rows) == of_explore_step(2)
