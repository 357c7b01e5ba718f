"""A batch that the trainer waits for no longer is made of what is ready, and stays as it is."""

from pathlib import Path

import grpc
import pytest

from tests.integration.buffer.harness import Buffer
from tests.integration.buffer.plans import BATCH_SIZE, REPEAT_TIMES, rollout_plan
from trinity.api.v1 import buffer_pb2 as pb
from trinity.config.plan.stage_plan import StagePlan

WAITS = {"max_read_timeout": 60}


def impatient_plan(
    directory: Path, *, replays: bool = False, train_step: str = "rows"
) -> StagePlan:
    replay = {"replay_buffer": {"enable": True, "reuse_cooldown_time": 1}} if replays else {}
    experiences = {"experience_buffer": {**WAITS, **replay}}
    return rollout_plan(directory, trainer_input=experiences, train_step=train_step)


def texts(rows: list[pb.BatchRow]) -> list[str]:
    return [row.experience.sequence.response_text for row in rows]


@pytest.mark.parametrize("replays", [False, True])
async def test_what_is_ready_is_recorded_though_work_before_it_is_open(
    buffer: Buffer, tmp_path: Path, replays: bool
) -> None:
    await buffer.open(impatient_plan(tmp_path, replays=replays))
    await buffer.begin()
    await buffer.record(0)
    first, second, third = (await buffer.lease()).assignments
    head, _ = await buffer.batch(1, wait_seconds=0, takes_incomplete=True)
    assert head.state == pb.BatchHead.STATE_WAITING, "nothing is ready"
    await buffer.finish_all([second])
    await buffer.until_ready(2)
    head, _ = await buffer.batch(1, wait_seconds=0)
    assert head.state == pb.BatchHead.STATE_WAITING, "the trainer waits still"
    head, rows = await buffer.batch(1, wait_seconds=0, takes_incomplete=True)
    assert (head.num_rows, head.metrics["sample/is_incomplete"]) == (2, 1.0)
    assert sorted(texts(rows)) == ["1/1/0", "1/1/1"]
    await buffer.finish_all([first, third])
    assert (await buffer.batch(1))[1] == rows, "a recorded batch never changes"
    notices = [event.notice.text for event in await buffer.events("notice")]
    said = "train step 1 takes 2 of 6 rollouts: no more were ready after 60 s (`max_read_timeout`)"
    assert said in notices


@pytest.mark.parametrize(
    ("train_step", "next_of_step_2"),
    [
        ("rows", ["2/0/0", "2/0/1"]),
        ("explore_step", [f"2/{i}/{j}" for i in range(3) for j in (0, 1)]),
    ],
)
async def test_what_comes_late_goes_into_the_next_batch(
    buffer: Buffer, tmp_path: Path, train_step: str, next_of_step_2: list[str]
) -> None:
    await buffer.open(impatient_plan(tmp_path, train_step=train_step))
    await buffer.begin()
    await buffer.record(0)
    first, second, third = (await buffer.lease()).assignments
    await buffer.finish_all([second])
    await buffer.until_ready(2)
    await buffer.batch(1, takes_incomplete=True)
    await buffer.finish_all([first, third])
    await buffer.report(1)
    await buffer.record(1)
    await buffer.finish_all((await buffer.lease()).assignments)
    head, rows = await buffer.batch(2)
    assert "sample/is_incomplete" not in head.metrics
    assert texts(rows) == ["1/0/0", "1/0/1", "1/2/0", "1/2/1", *next_of_step_2]


async def test_rows_that_are_too_old_are_in_no_incomplete_batch(
    buffer: Buffer, tmp_path: Path
) -> None:
    """Weights of version 0 make both explore steps, and are too old for train step 2."""
    plan = rollout_plan(
        tmp_path,
        sync_offset=1,
        algorithm={
            "repeat_times": REPEAT_TIMES,
            "sample_strategy": "staleness_control",
            "sample_strategy_args": {"max_staleness": 0},
        },
        trainer_input={"experience_buffer": WAITS},
        train_step="explore_step",
    )
    await buffer.open(plan)
    await buffer.begin()
    await buffer.record(0)
    work = (await buffer.lease()).assignments
    in_time = [one for one in work if (one.explore_step, one.position) != (2, 0)]
    await buffer.finish_all(in_time)
    await buffer.until_ready(10)
    await buffer.batch(1)
    head, rows = await buffer.batch(2, wait_seconds=0, takes_incomplete=True)
    assert head.state == pb.BatchHead.STATE_WAITING, texts(rows)


async def test_an_explore_step_that_is_short_of_runs_is_trained_when_it_is_due(
    buffer: Buffer, tmp_path: Path
) -> None:
    """Further tasks are drawn after those of the next explore step, which is not begun yet."""
    plan = rollout_plan(
        tmp_path,
        sync_offset=1,
        trainer_input={"experience_buffer": WAITS},
        train_step="explore_step",
    )
    await buffer.open(plan)
    await buffer.begin()
    await buffer.record(0)
    first, *rest = (await buffer.lease(BATCH_SIZE)).assignments
    await buffer.finish_all(rest)
    await buffer.until_ready(4)
    tried = [(run, attempt) for run in first.runs for attempt in range(2)]
    await buffer.settle(*(buffer.fail(first, run, attempt) for run, attempt in tried))
    head, _ = await buffer.batch(1, wait_seconds=0)
    while head.reason != "no explorer has asked for explore step 2 yet":
        head, _ = await buffer.batch(1, wait_seconds=0.1)
        assert head.state == pb.BatchHead.STATE_WAITING, head
    head, rows = await buffer.batch(1, wait_seconds=0, takes_incomplete=True)
    assert texts(rows) == ["1/1/0", "1/1/1", "1/2/0", "1/2/1"]
    notices = [event.notice.text for event in await buffer.events("notice")]
    assert any("train step 1 takes 4 rollouts, not all of its" in text for text in notices)


async def test_without_the_key_no_batch_is_cut_short(buffer: Buffer, tmp_path: Path) -> None:
    await buffer.open(rollout_plan(tmp_path))
    await buffer.begin()
    await buffer.record(0)
    await buffer.finish_all((await buffer.lease()).assignments[:1])
    with pytest.raises(grpc.aio.AioRpcError, match="incomplete batches are not trained") as error:
        await buffer.batch(1, takes_incomplete=True)
    assert error.value.code() == grpc.StatusCode.FAILED_PRECONDITION
