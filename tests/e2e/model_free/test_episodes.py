"""Workflows of several steps over real services: their steps, their rewards, their advantages."""

from collections import defaultdict
from pathlib import Path

import psycopg
import pytest
from pydantic import JsonValue

from tests.support.model_free.experiment import experiment_plan, run_to_end
from tests.support.model_free.hosted import OFFSET
from tests.support.model_free.shared_stack import ON_IT, SharedStack
from trinity.api.v1 import synchronizer_pb2 as pb

pytestmark = [ON_IT, pytest.mark.timeout(600)]

ROWS = """SELECT explore_step, position, run, step, reward FROM buffer.experience
    WHERE experiment_id = %s"""
TRAINED = """SELECT count(*), count(DISTINCT advantage) FROM buffer.batch_item
    WHERE experiment_id = %s"""


async def rows_of(
    stack: SharedStack, root: Path, algorithm: dict[str, JsonValue], workflow: str
) -> tuple[list[tuple[int, ...]], tuple[int, int]]:
    """What was stored of a run's explore steps, and what was trained of it."""
    plan = experiment_plan(
        root,
        name=f"steps-{algorithm['advantage_fn']}",
        algorithm=algorithm,
        buffer={
            "explorer_input": {"default_workflow_type": workflow},
            "total_steps": 2,
            "train_batch_size": 16,
        },
        model={"max_prompt_tokens": 2000, "max_response_tokens": 8},
    )
    ended = await run_to_end(stack.synchronizer, plan)
    assert ended.state == pb.EXPERIMENT_STATE_FINISHED, ended.reason
    with psycopg.connect(stack.secret("buffer-postgres-dsn")) as connection:
        rows = connection.execute(ROWS, [ended.id]).fetchall()
        (trained,) = connection.execute(TRAINED, [ended.id]).fetchall()
    return rows, trained


@pytest.mark.parametrize("name", ["gigpo", "step_wise_grpo"])
async def test_steps_are_numbered_and_compared_by_their_own_rewards(
    tmp_path: Path, shared_stack: SharedStack, name: str
) -> None:
    algorithm: dict[str, JsonValue] = {"algorithm_type": "grpo", "advantage_fn": name}
    workflow = "tests.support.model_free.episodes.Walk"
    rows, trained = await rows_of(shared_stack, tmp_path, algorithm, workflow)
    steps = defaultdict(set)
    for explore_step, position, run, step, _ in rows:
        steps[explore_step, position, run].add(step)
    assert len(steps) == 2 * 4 * 2
    assert set(map(tuple, map(sorted, steps.values()))) == {(0, 1)}
    assert len({row[-1] for row in rows}) > 2
    assert trained[0] == 2 * 4 * 2 * 2, "each train step takes an explore step whole"
    assert trained[1] > 4


async def test_a_workflow_of_trinity_rft_makes_all_runs_and_its_rewards_count(
    tmp_path: Path, shared_stack: SharedStack
) -> None:
    algorithm: dict[str, JsonValue] = {"algorithm_type": "grpo", "advantage_fn": "grpo"}
    workflow = "tests.support.model_free.hosted.Ranks"
    rows, trained = await rows_of(shared_stack, tmp_path, algorithm, workflow)
    groups = defaultdict(set)
    for explore_step, position, run, _, reward in rows:
        groups[explore_step, position].add((run, reward - OFFSET))
    assert len(groups) == 2 * 4
    for group in groups.values():
        assert {run for run, _ in group} == {0, 1}
        assert {rank for _, rank in group} <= {0.0, 1.0}
    assert trained[0] == 16
