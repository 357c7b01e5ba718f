"""How tasks were solved, version by version, as a page asks for it."""

from pathlib import Path

import grpc
import pytest

from tests.integration.buffer.harness import Buffer
from tests.integration.buffer.looking import Looking
from tests.integration.buffer.made import Made
from tests.integration.buffer.plans import rollout_plan
from trinity.api.v1 import buffer_pb2

EVAL = buffer_pb2.ASSIGNMENT_KIND_EVAL


async def test_scores_are_those_of_the_runs_of_each_task(
    buffer: Buffer, looking: Looking, tmp_path: Path
) -> None:
    await buffer.open(rollout_plan(tmp_path, num_eval=2, eval_repeats=2))
    await buffer.begin()
    await buffer.record(0)
    work = (await buffer.lease()).assignments
    train, evals = work[:3], work[3:]
    await buffer.settle(
        buffer.complete(evals[0], 0, Made(reward=1.0, metrics={"style": 0.75})),
        buffer.complete(evals[0], 1, Made(reward=0.0, metrics={"style": float("nan")})),
        buffer.complete(evals[1], 0, Made(reward=0.5), metrics={"style": 1e308}),
    )
    head, tasks = await looking.task_scores(kind=EVAL, pass_score=0.5)
    assert (head.num_draws, head.num_draws_read) == (2, 2)
    assert [(task.taskset, task.task_index, task.num_draws) for task in tasks] == [
        ("held_out", 0, 1),
        ("held_out", 1, 1),
    ]
    [first], [second] = tasks[0].versions, tasks[1].versions
    assert (first.version, first.num_runs, first.num_scored, first.num_passed) == (0, 2, 2, 1)
    assert (second.num_runs, second.num_scored, second.num_passed, second.mean) == (2, 1, 1, 0.5)
    _, styles = await looking.task_scores(kind=EVAL, metric="style", pass_score=0.5)
    assert styles[0].versions[0].mean == 0.75
    assert (styles[0].versions[0].num_scored, styles[1].versions[0].mean) == (1, 1e308)
    await buffer.finish_all(train)
    await buffer.batch(1)  # revisions with an advantage count no run twice
    _, trained = await looking.task_scores(pass_score=1.0)
    assert [task.versions[0].num_scored for task in trained] == [2, 2, 2]
    assert {task.task_index for task in trained} == {draw.task_index for draw in train}
    head, newest = await looking.task_scores(max_draws=2)
    assert (head.num_draws, head.num_draws_read, len(newest)) == (3, 2, 2)
    assert (await looking.task_scores(kind=EVAL, versions=[7]))[1] == ()
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await looking.task_scores(max_draws=10_001)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
