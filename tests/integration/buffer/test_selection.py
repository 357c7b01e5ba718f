"""Which task is next: the order of draws survives every death of the buffer."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import grpc
import pytest

from tests.integration.buffer.harness import Buffer, talk_to
from tests.integration.buffer.made import Made
from tests.integration.buffer.plans import BATCH_SIZE, REPEAT_TIMES, rollout_plan
from tests.integration.buffer.process import BufferProcess
from trinity.api.v1 import buffer_pb2 as pb
from trinity.config.plan.stage_plan import StagePlan

Draws = dict[tuple[int, int], tuple[str, int]]
"""Taskset and row by explore step and position."""
NUM_STEPS = 4
DIFFICULTY = {
    "selector_type": "difficulty_based",
    "feature_keys": ["weak", "strong"],
    "kwargs": {"target_reward": 0.5, "tau": 0.05},
}


def write(file: Path, num_rows: int) -> str:
    rows = [
        {"prompt": str(i), "response": "", "weak": i / num_rows / 2, "strong": str(i / num_rows)}
        for i in range(num_rows)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


def plan_with(
    directory: Path, *selectors: Mapping[str, object], num_rows: int = 24, interval: int = 2
) -> StagePlan:
    """One taskset for each selector."""
    tasksets = [
        {
            "name": f"tasks_{i}",
            "path": write(directory / f"tasks_{i}.jsonl", num_rows),
            "data_selector": selector,
        }
        for i, selector in enumerate(selectors)
    ]
    return rollout_plan(
        directory,
        total_steps=NUM_STEPS,
        sync_interval=interval,
        explorer_input={
            "default_workflow_type": "simple_workflow",
            "taskset": None,
            "tasksets": tasksets,
            "eval_tasksets": [],
        },
    )


def reward_of(assignment: pb.Assignment, run: int) -> float:
    """Easy rows are solved in each run, hard ones in none, those between in one of two."""
    row = assignment.task_index
    return float(row % 3 == 0 or (row % 3 == 1 and run == 0))


async def explore(buffer: Buffer, assignments: Sequence[pb.Assignment]) -> None:
    results = [
        buffer.complete(one, run, Made(reward=reward_of(one, run)))
        for one in assignments
        for run in one.runs
    ]
    await buffer.settle(*results)


class Disturbance:
    """Kills the buffer between any two calls."""

    def __init__(self, process: BufferProcess | None) -> None:
        self.process = process
        self.num_kills = 0

    async def strike(self) -> None:
        if self.process is not None:
            self.process.kill()
            await self.process.start()
            self.num_kills += 1


async def drawn_by(buffer: Buffer, plan: StagePlan, disturbance: Disturbance) -> Draws:
    """The whole stage; a disturbed explorer also ends its work in the reverse order."""
    await buffer.open(plan)
    await buffer.begin()
    await buffer.record(0)
    draws: Draws = {}
    step = 0
    while step < NUM_STEPS:
        granted = (await buffer.lease()).assignments
        assert len(granted) % BATCH_SIZE == 0
        draws |= {
            (one.explore_step, one.position): (one.taskset, one.task_index) for one in granted
        }
        await disturbance.strike()
        order = granted[::-1] if disturbance.process else granted
        for one in order:
            await explore(buffer, [one])
        await disturbance.strike()
        for _ in range(2):
            step += 1
            head, rows = await buffer.batch(step)
            assert len(rows) == BATCH_SIZE * REPEAT_TIMES, head
            await buffer.report(step)
        await disturbance.strike()
        await buffer.record(step)
        await disturbance.strike()
    return draws


@pytest.mark.thorough
@pytest.mark.timeout(900)
async def test_a_killed_buffer_draws_the_tasks_that_an_undisturbed_one_draws(
    own_process: BufferProcess, tmp_path: Path
) -> None:
    easy_first = {"selector_type": "offline_easy2hard", "feature_keys": ["strong"]}
    plan = plan_with(tmp_path, DIFFICULTY, easy_first, {"selector_type": "random", "seed": 3})
    async with talk_to(own_process) as buffer:
        undisturbed = await drawn_by(buffer, plan, Disturbance(None))
    disturbance = Disturbance(own_process)
    async with talk_to(own_process) as buffer:
        assert await drawn_by(buffer, plan, disturbance) == undisturbed
    assert disturbance.num_kills == 8
    assert len(undisturbed) == NUM_STEPS * BATCH_SIZE
    rows = [row for _, (name, row) in sorted(undisturbed.items()) if name == "tasks_1"]
    assert rows == list(range(23, 23 - len(rows), -1))


async def test_what_the_rollouts_teach_changes_the_draws(buffer: Buffer, tmp_path: Path) -> None:
    learning = {**DIFFICULTY, "kwargs": {"target_reward": 1.0, "tau": 0.0}}
    plan = plan_with(tmp_path, learning, num_rows=30, interval=1)
    await buffer.open(plan)
    await buffer.begin()
    await buffer.record(0)
    seen: list[list[int]] = []
    for step in (1, 2, 3):
        granted = (await buffer.lease()).assignments
        seen.append([one.task_index for one in granted])
        await explore(buffer, granted)
        await buffer.batch(step)
        await buffer.report(step)
        await buffer.record(step)
    # Nothing is known at first. Then row 0 was solved, 1 and 2 less so, and by the anchors, far
    # below what was seen, rows from 3 on are believed to be solved.
    assert seen[:2] == [[0, 1, 2], [0, 3, 4]]


async def test_a_row_without_the_number_that_is_asked_for_is_named(
    buffer: Buffer, tmp_path: Path
) -> None:
    plan = plan_with(tmp_path, {"selector_type": "offline_easy2hard", "feature_keys": ["strong"]})
    file = tmp_path / "tasks_0.jsonl"
    file.write_text('{"prompt": "a", "strong": 1}\n{"prompt": "b", "strong": "much"}\n')
    with pytest.raises(grpc.aio.AioRpcError, match="tasks_0, row 1: column strong") as error:
        await buffer.open(plan)
    assert error.value.code() == grpc.StatusCode.FAILED_PRECONDITION


@pytest.mark.parametrize(
    "text",
    [
        "null \x00",
        "half a pair \ud83d",
        "the other half \ude00",
        "a whole one \U0001f600 and half a one \ud83d\x00",
        r"no character: \u0000, \ud83d",
    ],
)
async def test_a_row_is_ranked_whatever_characters_it_holds(
    buffer: Buffer, tmp_path: Path, text: str
) -> None:
    """JSON may hold what no text in a database may."""
    column = "how hard \U0001f600"
    easy_first = {"selector_type": "offline_easy2hard", "feature_keys": [column]}
    plan = plan_with(tmp_path, easy_first)
    rows = [{"prompt": "a", "response": "", column: 2.0}, {"prompt": text, column: "1"}]
    file = tmp_path / "tasks_0.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    await buffer.open(plan)
    await buffer.begin()
    await buffer.record(0)
    granted = (await buffer.lease()).assignments
    assert [one.task_index for one in granted[:2]] == [0, 1]
    assert json.loads(granted[1].task_json)["prompt"] == text


@pytest.mark.parametrize("prompt", ["b", "half a pair \ud83d"])
async def test_a_row_is_ranked_by_a_number_inside_of_a_column(
    buffer: Buffer, tmp_path: Path, prompt: str
) -> None:
    easy_first = {"selector_type": "offline_easy2hard", "feature_keys": ["extra_info.rate"]}
    plan = plan_with(tmp_path, easy_first)
    rows: list[object] = [
        {"prompt": "a", "extra_info": {"rate": 1}},
        {"prompt": prompt, "extra_info": {"rate": 3}},
        {"prompt": "c", "extra_info": {}, "extra_info.rate": 2},
    ]
    file = tmp_path / "tasks_0.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    await buffer.open(plan)
    await buffer.begin()
    await buffer.record(0)
    granted = (await buffer.lease()).assignments
    assert [task.task_index for task in granted[:3]] == [1, 2, 0]
