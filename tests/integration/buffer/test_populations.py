"""What bends the data on its way to the trainer shows, in the progress and on demand."""

import asyncio
from pathlib import Path

import pytest

from tests.integration.buffer.harness import Buffer
from tests.integration.buffer.looking import Looking
from tests.integration.buffer.made import Made
from tests.integration.buffer.plans import ROWS, fresh_plan, rollout_plan
from trinity.api.v1 import query_pb2 as pb
from trinity.types import FinishReason

SHORT, LONG = 4, 40


async def begun(buffer: Buffer) -> None:
    await buffer.begin()
    await buffer.record(0)


async def step_metrics(buffer: Buffer, count: int) -> list[dict[str, float]]:
    events = await buffer.events("step", count)
    return [dict(one.step.metrics) for one in events if one.WhichOneof("event") == "step"]


async def train(buffer: Buffer, step: int) -> None:
    """Of each two runs the second one comes to nothing, for it is too long."""
    waiting = asyncio.ensure_future(buffer.batch(step, wait_seconds=30))
    while not waiting.done():
        work = (await buffer.lease(wait_seconds=0.1)).assignments
        if work:
            cut_off = Made(num_tokens=LONG, finish_reason=FinishReason.ABORT)
            short = [buffer.complete(one, 0, Made(num_tokens=SHORT)) for one in work]
            long = [buffer.complete(one, 1, cut_off) for one in work]
            await buffer.settle(*short, *long)
    head, _ = await waiting
    assert head.num_rows == ROWS
    await buffer.report(step)
    await buffer.record(step)


async def test_a_filter_that_drops_long_responses_shows_as_a_shift(
    buffer: Buffer, looking: Looking, tmp_path: Path
) -> None:
    await buffer.open(rollout_plan(tmp_path, num_tasks=120, max_refill_rounds=9))
    await begun(buffer)
    for step in (1, 2, 3, 4):
        await train(buffer, step)
    [first, *_] = await step_metrics(buffer, 1)
    assert first["population/response_length/generated"] == (SHORT + LONG) / 2
    assert first["population/response_length/trained"] == SHORT
    assert first["population/response_length/shift"] == 0.5
    assert first["population/reward/shift"] == 0
    found = await looking.population()
    lengths, rewards, tasks = found.comparisons
    assert (found.num_runs, found.num_generated, found.num_trained) == (48, 48, 24)
    assert (lengths.name, lengths.shift, lengths.is_significant) == ("response_length", 0.5, True)
    assert (rewards.name, rewards.is_significant) == ("reward", False)
    assert (tasks.name, tasks.shift) == ("task", 0)
    why = [(one.reason, one.count) for one in found.left_out]
    assert why == [("it was cut off from outside", 24)]


async def test_where_everything_is_trained_on_nothing_is_shifted(
    buffer: Buffer, tmp_path: Path
) -> None:
    await buffer.open(rollout_plan(tmp_path))
    await begun(buffer)
    await buffer.finish_all((await buffer.lease()).assignments)
    await buffer.batch(1)
    await buffer.report(1)
    [metrics] = await step_metrics(buffer, 1)
    assert {name: value for name, value in metrics.items() if name.endswith("shift")} == {
        "population/response_length/shift": 0.0,
        "population/reward/shift": 0.0,
        "population/task/shift": 0.0,
    }


async def test_each_explore_step_counts_once_and_when_it_is_settled(
    buffer: Buffer, tmp_path: Path
) -> None:
    await buffer.open(rollout_plan(tmp_path, train_batch_size=2, sync_offset=1))
    await begun(buffer)
    await buffer.finish_all((await buffer.lease()).assignments[:3])
    for step in (1, 2, 3):
        await buffer.batch(step)
        await buffer.report(step)
    generated = [one.get("population/num_generated") for one in await step_metrics(buffer, 3)]
    assert generated == [None, None, 6.0]


async def test_a_staleness_bound_that_leaves_out_old_rows_shows(
    buffer: Buffer, looking: Looking, tmp_path: Path
) -> None:
    """Of each group of the first explore step the slow half is too old when it comes."""
    await buffer.open(fresh_plan(tmp_path, max_staleness=0, train_batch_size=2, sync_offset=1))
    await begun(buffer)
    work = (await buffer.lease()).assignments
    await buffer.settle(*(buffer.complete(work[0], run, Made(num_tokens=SHORT)) for run in (0, 1)))
    await buffer.batch(1)
    await buffer.report(1)
    await buffer.record(1)
    await buffer.settle(
        *(buffer.complete(one, run, Made(num_tokens=LONG)) for one in work[1:3] for run in (0, 1)),
        *(
            buffer.complete(one, run, Made(num_tokens=SHORT, version=1))
            for one in work[3:]
            for run in (0, 1)
        ),
    )
    await buffer.batch(2)
    await buffer.report(2)
    found = await looking.population()
    lengths = found.comparisons[0]
    assert lengths.generated_mean > lengths.trained_mean == SHORT
    assert any("made by weights older" in one.reason for one in found.left_out)


async def test_runs_that_gave_nothing_shift_the_tasks(
    buffer: Buffer, looking: Looking, tmp_path: Path
) -> None:
    await buffer.open(rollout_plan(tmp_path, train_batch_size=4))
    await begun(buffer)
    first, *others = (await buffer.lease()).assignments
    await buffer.finish_all(others)
    await buffer.settle(
        *(
            buffer.fail(first, run, first.first_attempt + attempt)
            for run in (0, 1)
            for attempt in (0, 1)
        )
    )
    await buffer.batch(1)
    await buffer.report(1)
    found = await looking.population()
    assert (found.num_runs, found.num_generated, found.num_trained) == (6, 4, 4)
    assert found.comparisons[-1].name == "task"
    assert found.comparisons[-1].shift == pytest.approx(1 / 3)


async def test_a_life_that_trains_a_step_again_counts_nothing_twice(
    buffer: Buffer, tmp_path: Path
) -> None:
    await buffer.open(rollout_plan(tmp_path))
    await begun(buffer)
    await buffer.finish_all((await buffer.lease()).assignments)
    await buffer.batch(1)
    await buffer.report(1)
    await begun(buffer)
    await buffer.report(1)
    first, again = await step_metrics(buffer, 2)
    assert first["population/num_generated"] == 6
    assert "population/num_generated" not in again


async def test_what_was_deleted_afterwards_counts_as_what_it_was(
    buffer: Buffer, looking: Looking, tmp_path: Path
) -> None:
    await buffer.open(rollout_plan(tmp_path))
    await begun(buffer)
    await buffer.finish_all((await buffer.lease()).assignments)
    await buffer.batch(1)
    await buffer.report(1)
    before = await looking.population()
    await buffer.checkpoint(1)
    assert (await looking.delete(pb.ExperienceFilter(train_step=1), "why")).num_deleted == 6
    assert await looking.population() == before


async def test_before_anything_is_settled_there_is_nothing_to_compare(
    buffer: Buffer, looking: Looking, tmp_path: Path
) -> None:
    await buffer.open(rollout_plan(tmp_path))
    assert await looking.population() == pb.GetPopulationResponse()
