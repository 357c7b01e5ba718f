"""An explore step whose rows fill fewer train steps than planned has fewer of them."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.integration.buffer.conftest import UsersModule
from tests.integration.buffer.harness import Buffer
from tests.integration.buffer.made import Made
from tests.integration.buffer.plans import rollout_plan, with_operators
from trinity.api.v1 import buffer_pb2 as pb
from trinity.config.plan.stage_plan import StagePlan

RUNS = 4
NUM_EXPLORE_STEPS = 3
BEST = """
import numpy as np
from trinity.operators.rollouts import Changes, Rollouts

def best(rollouts: Rollouts, *, at_least: float = 0.0) -> Changes:
    best_G = np.maximum(rollouts.group_maxima(rollouts.rewards), at_least)
    return Changes(left_out=rollouts.rewards < best_G[rollouts.groups], reason="not the best")
"""
Places = list[tuple[int, int, int]]


def plan_of(
    directory: Path, name: str, *, short_batch: str = "train", offset: int = 0
) -> StagePlan:
    plan = rollout_plan(
        directory,
        num_tasks=60,
        num_eval=1,
        total_steps=NUM_EXPLORE_STEPS,
        train_batch_size=4,
        batch_size=4,
        sync_offset=offset,
        short_batch=short_batch,
        algorithm={"repeat_times": RUNS},
    )
    return with_operators(plan, name)


def own(module: UsersModule, *, at_least: float = 0.0) -> str:
    module.write(BEST.replace("at_least: float = 0.0", f"at_least: float = {at_least}"))
    return f"{module.name}.best"


async def begin(buffer: Buffer, plan: StagePlan) -> None:
    await buffer.open(plan)
    await buffer.begin()
    await buffer.record(0)


async def explore(buffer: Buffer, best_of: int, *, wait_seconds: float) -> Sequence[pb.Assignment]:
    """Runs all work that there is; the best run of a task has reward `best_of`."""
    work = (await buffer.lease(wait_seconds=wait_seconds)).assignments
    for task in work:
        made = (
            buffer.complete(task, run, Made(reward=float(best_of if run == 3 else 0)))
            for run in task.runs
        )
        await buffer.settle(*made)
    return work


async def train(
    buffer: Buffer, first: int = 1, *, until: int = 99, best_of: int = 1
) -> tuple[dict[int, Places], str]:
    """Trains step by step; returns the rows of each batch by place, and the reason of the end."""
    batches: dict[int, Places] = {}
    for step in range(first, until + 1):
        while True:
            head, rows = await buffer.batch(step, wait_seconds=0.3)
            if head.state != pb.BatchHead.STATE_WAITING:
                break
            await explore(buffer, best_of, wait_seconds=0.3)
        if head.state != pb.BatchHead.STATE_READY:
            return batches, head.reason
        eids = [row.experience.eid for row in rows]
        batches[step] = [(eid.explore_step, eid.position, eid.run) for eid in eids]
        await buffer.report(step)
        await buffer.record(step)
    return batches, ""


@pytest.mark.parametrize("short_batch", ["train", "fail"])
async def test_a_run_that_keeps_the_best_of_each_group_goes_on_to_its_end(
    users_buffer: Buffer, users_module: UsersModule, tmp_path: Path, short_batch: str
) -> None:
    await begin(users_buffer, plan_of(tmp_path, own(users_module), short_batch=short_batch))
    batches, reason = await train(users_buffer)
    assert reason == f"all {len(batches)} train steps have their batch"
    assert len(batches) < NUM_EXPLORE_STEPS * RUNS
    rows = [place for batch in batches.values() for place in batch]
    assert rows == sorted(set(rows)), "each row is trained once, in order"
    assert {step for step, _, _ in rows} == set(range(1, NUM_EXPLORE_STEPS + 1))
    assert all(run == 3 for _, _, run in rows)
    assert batches[1] == [(1, position, 3) for position in range(4)]
    status = await users_buffer.status()
    assert status.total_train_steps == len(batches)


async def test_batches_are_the_same_after_another_life_of_the_trainer(
    users_buffer: Buffer, users_module: UsersModule, tmp_path: Path
) -> None:
    plan = plan_of(tmp_path, own(users_module))
    await begin(users_buffer, plan)
    planned = await users_buffer.open(plan)
    first, _ = await train(users_buffer, until=3)
    opened = await users_buffer.open(plan)
    await users_buffer.begin()
    again, _ = await train(users_buffer, until=3)
    assert again == first
    assert (await users_buffer.status()).total_train_steps < planned.total_train_steps
    assert opened.total_train_steps == planned.total_train_steps, "learning rates follow it"
    _, reason = await train(users_buffer, 4)
    assert reason.startswith("all ")


async def test_versions_follow_the_steps_that_there_are_and_are_evaluated(
    users_buffer: Buffer, users_module: UsersModule, tmp_path: Path
) -> None:
    """Evaluations are due after two explore steps; the weights of the third are those."""
    await begin(users_buffer, plan_of(tmp_path, own(users_module)))
    versions: dict[int, set[int]] = {}
    evaluated: set[int] = set()
    step = 1
    while True:
        head, _ = await users_buffer.batch(step, wait_seconds=0.3)
        if head.state == pb.BatchHead.STATE_WAITING:
            for task in await explore(users_buffer, 1, wait_seconds=0.3):
                if task.kind == pb.ASSIGNMENT_KIND_EVAL:
                    evaluated.add(task.required_version)
                else:
                    versions.setdefault(task.explore_step, set()).add(task.required_version)
            continue
        if head.state != pb.BatchHead.STATE_READY:
            break
        await users_buffer.report(step)
        await users_buffer.record(step)
        step += 1
    [begun] = versions[1]
    [second] = versions[2]
    [third] = versions[3]
    assert begun == 0 < second < third < step
    assert evaluated == {0, third}


@pytest.mark.parametrize("offset", [0, 1])
async def test_an_explore_step_that_fills_no_train_step_fails(
    users_buffer: Buffer, users_module: UsersModule, tmp_path: Path, offset: int
) -> None:
    """The control: no reward reaches the bar."""
    await begin(users_buffer, plan_of(tmp_path, own(users_module, at_least=5.0), offset=offset))
    batches, reason = await train(users_buffer)
    assert not batches
    assert reason.startswith("train step 1 has 0 of 4 rows after 3 rounds of refill")


async def test_steps_that_go_ahead_end_well_too(
    users_buffer: Buffer, users_module: UsersModule, tmp_path: Path
) -> None:
    await begin(users_buffer, plan_of(tmp_path, own(users_module), offset=1))
    batches, reason = await train(users_buffer)
    assert reason == f"all {len(batches)} train steps have their batch"
    assert {step for batch in batches.values() for step, _, _ in batch} == {1, 2, 3}
