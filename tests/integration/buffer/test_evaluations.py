"""Evaluations: pinned to a version, summed up with their standard error, never trained on."""

import asyncio
import statistics
from collections.abc import Iterable
from itertools import product
from pathlib import Path

import pytest

from tests.integration.buffer.calls import WAIT_SECONDS
from tests.integration.buffer.harness import Buffer
from tests.integration.buffer.looking import Looking
from tests.integration.buffer.made import Made
from tests.integration.buffer.plans import rollout_plan
from trinity.api.v1 import buffer_pb2 as pb

Lease = pb.LeaseAssignmentsResponse
EVAL, TRAIN = pb.ASSIGNMENT_KIND_EVAL, pb.ASSIGNMENT_KIND_TRAIN


def over_runs(tasks: Iterable[list[float]]) -> dict[str, float]:
    """Statistics over two runs a task, by all of their draws."""
    listed = list(tasks)
    pairs = [list(product(runs, repeat=2)) for runs in listed]
    whole = [runs for runs in listed if len(runs) == 2]
    return {
        "std@2": statistics.mean(map(statistics.pstdev, listed)),
        "best@2": statistics.mean(statistics.mean(map(max, drawn)) for drawn in pairs),
        "worst@2": statistics.mean(statistics.mean(map(min, drawn)) for drawn in pairs),
        "pass@1": statistics.mean(map(statistics.mean, listed)),
        "pass@2": statistics.mean(map(max, whole)),
    }


@pytest.mark.parametrize("meaning", ["zero", "exclude"])
async def test_figures_are_means_over_tasks_with_their_standard_error(
    buffer: Buffer, looking: Looking, tmp_path: Path, meaning: str
) -> None:
    plan = rollout_plan(tmp_path, num_eval=4, eval_repeats=2, eval_failed_runs=meaning)
    await buffer.open(plan)
    await buffer.begin()
    assert await buffer.record(0) == [0]
    work = (await buffer.lease()).assignments
    assert [one.kind for one in work] == [TRAIN] * 3 + [EVAL] * 4
    evals = work[3:]
    assert all(one.required_version == one.explore_step == 0 for one in evals)
    rewards = {0: (1.0, 0.0), 1: (1.0, 1.0), 2: (0.0, 0.0)}
    results = [
        buffer.complete(evals[task], run, Made(reward=reward), metrics={"turns": 2.0})
        for task, runs in rewards.items()
        for run, reward in enumerate(runs)
        if (task, run) != (1, 1)
    ]
    lost = ((1, 1), (3, 0), (3, 1))
    broken = [buffer.fail(evals[task], run, attempt) for task, run in lost for attempt in (0, 1)]
    await buffer.settle(*results, *broken)
    event = (await buffer.events("evaluation"))[-1]
    done = event.evaluation
    values = {0: [1.0, 0.0], 1: [1.0], 2: [0.0, 0.0]}
    if meaning == "zero":
        values[1], values[3] = [1.0, 0.0], [0.0, 0.0]
    assert (done.version, done.taskset, done.num_tasks) == (0, "held_out", len(values))
    assert (done.num_failed, done.num_runs) == (3, 8)
    assert done.failed_count_zero is (meaning == "zero")
    figures = {one.name: one for one in done.metrics}
    means = [statistics.mean(runs) for runs in values.values()]
    assert figures["reward"].num_tasks == len(means)
    assert figures["reward"].mean == pytest.approx(statistics.mean(means))
    error = statistics.stdev(means) / len(means) ** 0.5
    assert figures["reward"].standard_error == pytest.approx(error)
    assert (figures["turns"].mean, figures["turns"].num_tasks) == (2.0, 3)
    assert dict(figures["reward"].of_runs) == pytest.approx(over_runs(values.values()))
    over_tasks = {"max": max(means), "min": 0.0, "std": statistics.pstdev(means)}
    assert dict(figures["reward"].of_tasks) == pytest.approx(over_tasks)
    _, scores = await looking.task_scores(kind=EVAL, pass_score=1.0)
    assert sum(task.versions[0].num_scored for task in scores) == sum(map(len, values.values()))
    await buffer.finish_all(work[:3])
    assert await buffer.record(0) == [0], "no work needs it: it is the best so far"


async def test_an_evaluation_is_summed_up_however_large_a_metric_is(
    buffer: Buffer, tmp_path: Path
) -> None:
    await buffer.open(rollout_plan(tmp_path, num_eval=2, eval_repeats=2))
    await buffer.begin()
    await buffer.record(0)
    evals = (await buffer.lease()).assignments[3:]
    sizes = {0: (1e200, 3e200), 1: (1e308, 1.7e308)}
    results = [
        buffer.complete(evals[task], run, metrics={"perplexity": size})
        for task, runs in sizes.items()
        for run, size in enumerate(runs)
    ]
    told = await buffer.settle(*results)
    assert {one.state for one in told} == {pb.CommitReport.STATE_COMMITTED}
    done = (await buffer.events("evaluation"))[-1].evaluation
    [figure] = [one for one in done.metrics if one.name == "perplexity"]
    assert figure.mean == pytest.approx(0.675e308)
    assert figure.of_tasks["max"] == pytest.approx(1.35e308)
    assert figure.of_runs["std@2"] == pytest.approx(0.175e308)


@pytest.mark.parametrize("keep_best", [0, 1, 2])
async def test_the_best_evaluated_versions_stay_and_are_told(
    buffer: Buffer, tmp_path: Path, keep_best: int
) -> None:
    plan = rollout_plan(tmp_path, num_eval=1, total_steps=4)
    trainer = plan.config.trainer.model_copy(update={"keep_best": keep_best})
    config = plan.config.model_copy(update={"trainer": trainer})
    await buffer.open(plan.model_copy(update={"config": config}))
    await buffer.begin()
    rewards = {0: 0.25, 2: 0.75, 4: 0.5}
    told: list[list[int]] = []
    for step in range(5):
        await buffer.record(step)
        if step == 4:
            assert (await buffer.finish(4)).state == pb.FinishTrainingResponse.STATE_EVALUATING
            ending = asyncio.create_task(buffer.finish(4, wait_seconds=WAIT_SECONDS))
        work = (await buffer.lease()).assignments
        evals = [one for one in work if one.kind == EVAL]
        await buffer.finish_all([one for one in work if one.kind == TRAIN])
        made = Made(reward=rewards.get(step, 0.0))
        await buffer.settle(*(buffer.complete(one, 0, made) for one in evals))
        if step < 4:
            await buffer.batch(step + 1)
            answer = await buffer.report(step + 1)
            assert set(answer.best_versions) <= set(answer.pinned_versions)
            told.append(list(answer.best_versions))
    ended = await ending
    assert ended.state == pb.FinishTrainingResponse.STATE_FINISHED
    assert told == [best[:keep_best] for best in ([0], [0], [2, 0], [2, 0])]
    assert list(ended.best_versions) == [2, 4][:keep_best]


async def test_evaluations_open_at_intervals_and_at_the_end_and_go_before_newer_weights(
    buffer: Buffer, tmp_path: Path
) -> None:
    await buffer.open(rollout_plan(tmp_path, num_eval=1, total_steps=3))
    await buffer.begin()
    seen: list[tuple[str, int, int]] = []
    for step in range(4):
        await buffer.record(step)
        if step == 3:
            await buffer.finish(3)
        work = await buffer.lease()
        for one in work.assignments:
            kind = "eval" if one.kind == EVAL else "train"
            seen.append((kind, one.explore_step, one.required_version))
        await buffer.finish_all(work.assignments)
        if step < 3:
            await buffer.batch(step + 1)
            await buffer.report(step + 1)
    assert [one for one in seen if one[0] == "eval"] == [
        ("eval", 0, 0),
        ("eval", 2, 2),
        ("eval", 3, 3),
    ]
    assert (await buffer.lease()).state == Lease.STATE_DRAINED


async def test_an_evaluation_left_open_goes_before_training_with_newer_weights(
    buffer: Buffer, tmp_path: Path
) -> None:
    await buffer.open(rollout_plan(tmp_path, num_eval=2))
    await buffer.begin()
    await buffer.record(0)
    work = (await buffer.lease(3)).assignments
    assert {one.kind for one in work} == {TRAIN}
    await buffer.finish_all(work)
    await buffer.batch(1)
    assert await buffer.record(1) == [0]
    kinds = [one.kind for one in (await buffer.lease()).assignments]
    assert kinds == [EVAL, EVAL, TRAIN, TRAIN, TRAIN]
