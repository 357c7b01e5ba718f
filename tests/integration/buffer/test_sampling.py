"""Sample strategies: rows of data among rollouts, and rollouts that are too old to train on."""

import asyncio
import json
from pathlib import Path

import psycopg

from tests.integration.buffer.harness import Buffer, talk_to
from tests.integration.buffer.made import Made
from tests.integration.buffer.plans import ROWS, fresh_plan, mixed_plan, rollout_plan
from tests.integration.buffer.process import BufferProcess
from trinity.api.v1 import buffer_pb2 as pb
from trinity.config.plan.stage_plan import StagePlan

EXPERT, STALE = "sample/num_expert_rows", "sample/num_stale_rows"
UNVERSIONED = "sample/num_unversioned_rows"
LEFT_OUT = """
SELECT explore_step, count(*), min(reason) FROM buffer.experience
WHERE experiment_id = %s AND state = 'filtered' GROUP BY 1 ORDER BY 1
"""


async def begin(buffer: Buffer, plan: StagePlan, seed: int = 7) -> pb.OpenStageResponse:
    """A trainer has begun and published the starting weights."""
    opened = await buffer.open(plan, seed)
    await buffer.begin()
    await buffer.record(0)
    return opened


async def explore(buffer: Buffer) -> list[pb.Assignment]:
    """Roll out all that is handed out now."""
    assignments = list((await buffer.lease()).assignments)
    await buffer.finish_all(assignments)
    return assignments


async def ready_rows(buffer: Buffer, count: int) -> None:
    """Wait until so many can be batched."""
    async with asyncio.timeout(30):
        while (await buffer.status()).num_ready < count:  # noqa: ASYNC110 - the pipeline is another process
            await asyncio.sleep(0.05)


def texts(rows: list[pb.BatchRow]) -> list[str]:
    """Where rollouts come from: explore step, position, run."""
    return [row.experience.sequence.response_text for row in rows]


def indexes(rows: list[pb.BatchRow]) -> list[int]:
    """Numbers of the rows of data, which stand after the rollouts."""
    kinds = [row.WhichOneof("source") for row in rows]
    assert kinds == sorted(kinds), kinds
    assert [row.position for row in rows] == list(range(len(rows)))
    return [row.row_index for row in rows if row.WhichOneof("source") == "row_json"]


def left_out(dsn: str, buffer: Buffer) -> list[tuple[int, int, str]]:
    """Explore step, how many of its rows, and why."""
    with psycopg.connect(dsn) as connection:
        return connection.execute(LEFT_OUT, [buffer.key.experiment_id]).fetchall()


async def explored_batch(
    buffer: Buffer, step: int
) -> tuple[tuple[pb.BatchHead, list[pb.BatchRow]], list[pb.Assignment]]:
    """A step's batch, and the rollouts that were handed out for it while it was waited for."""
    return await asyncio.gather(buffer.batch(step), explore(buffer))


async def test_a_mixed_batch_holds_expert_rows_after_its_rollouts(
    buffer: Buffer, tmp_path: Path
) -> None:
    opened = await begin(buffer, mixed_plan(tmp_path, train_batch_size=2 * ROWS, total_steps=2))
    assert (opened.num_tasks, opened.total_explore_steps, opened.total_train_steps) == (12, 2, 2)
    drawn = []
    for step in (1, 2):
        assert [one.explore_step for one in await explore(buffer)] == [step] * 3
        head, rows = await buffer.batch(step)
        assert (head.num_rows, head.metrics["sample/num_expert_rows"]) == (2 * ROWS, ROWS)
        assert head.metrics["reward/mean"] == 0.5
        assert texts(rows[:ROWS]) == [f"{step}/{position}/{run}" for position in range(3)
                                      for run in range(2)]  # fmt: skip
        drawn += indexes(rows)
        shown = json.loads(rows[-1].row_json)["prompt"]
        assert shown == f"{drawn[-1]}+{drawn[-1]}="
        await buffer.record(step)
    assert sorted(drawn[:10]) == list(range(10)), "each row once an epoch"
    assert (await buffer.batch(3))[0].state == pb.BatchHead.STATE_DRAINED


async def test_expert_rows_follow_from_the_step_whoever_asks_and_however_rollouts_came(
    process: BufferProcess, tmp_path: Path
) -> None:
    plan = mixed_plan(tmp_path, train_batch_size=ROWS, ratio=0.3, sync_offset=1)
    seen: list[list[list[int]]] = []
    for seed in (7, 7, 8):
        async with talk_to(process) as buffer:
            await begin(buffer, plan, seed)
            assignments = list((await buffer.lease()).assignments)
            await buffer.finish_all(assignments[::-1] if seen else assignments)
            batches = [await buffer.batch(step) for step in (1, 2)]
            await buffer.begin()
            again = [await buffer.batch(step) for step in (1, 2)]
            assert [head.replayed for head, _ in again] == [True, True]
            assert [rows for _, rows in again] == [rows for _, rows in batches]
            seen.append([indexes(rows) for _, rows in batches])
    assert [len(numbers) for numbers in seen[0]] == [2, 2]
    assert seen[0] == seen[1] != seen[2]


async def test_the_rollouts_that_are_left_over_make_a_short_mixed_batch(
    buffer: Buffer, tmp_path: Path
) -> None:
    await begin(buffer, mixed_plan(tmp_path, train_batch_size=8, total_steps=1))
    await explore(buffer)
    sizes = []
    for step in (1, 2):
        _, rows = await buffer.batch(step)
        sizes.append((len(rows) - len(indexes(rows)), len(indexes(rows))))
    assert sizes == [(4, 4), (2, 4)]


async def test_every_batch_tells_the_versions_it_was_made_by(
    buffer: Buffer, tmp_path: Path
) -> None:
    await begin(buffer, rollout_plan(tmp_path, sync_offset=1))
    await explore(buffer)
    await buffer.batch(1)
    head, _ = await buffer.batch(2)
    for name in ("mean", "min", "max"):
        assert head.metrics[f"sample/model_version/{name}"] == 0.0
        assert head.metrics[f"sample/model_version_drift/{name}"] == 1.0


async def test_rows_that_are_too_old_leave_their_place_to_newer_ones(
    process: BufferProcess, buffer: Buffer, tmp_path: Path
) -> None:
    await begin(buffer, fresh_plan(tmp_path, max_staleness=0, sync_offset=1))
    await explore(buffer)
    head, rows = await buffer.batch(1)
    assert len(rows) == ROWS and head.metrics["sample/num_stale_rows"] == 0.0
    await buffer.record(1)
    (head, rows), explored = await explored_batch(buffer, 2)
    assert {one.required_version for one in explored} == {1}
    assert {row.experience.eid.explore_step for row in rows} == {3}
    assert head.metrics["sample/num_stale_rows"] == ROWS
    assert head.metrics["sample/model_version_drift/max"] == 0.0
    [(explore_step, count, reason)] = left_out(process.dsn, buffer)
    assert (explore_step, count) == (2, ROWS)
    assert reason == (
        "made by weights older than version 1, the oldest that train step 2 takes with "
        "`max_staleness: 0`"
    )


async def test_by_token_a_row_leaves_with_its_newest_and_the_batch_records_its_oldest_version(
    process: BufferProcess, buffer: Buffer, tmp_path: Path
) -> None:
    """Of the rows of one explore step, those that newer weights have ended are kept."""
    plan = fresh_plan(tmp_path, max_staleness=0, unit="token", train_batch_size=2, total_steps=2)
    await begin(buffer, plan)
    first, second, third = (await buffer.lease()).assignments
    await buffer.finish_all([first, second])
    head, _ = await buffer.batch(1)
    assert head.oldest_version == 0
    await buffer.record(1)
    mixed = [buffer.complete(third, run, Made(version=0, then=1)) for run in third.runs]
    await buffer.settle(*mixed)
    head, rows = await buffer.batch(2)
    assert texts(rows) == ["1/2/0", "1/2/1"]
    assert (head.oldest_version, head.metrics[STALE]) == (1, 2.0)
    assert [(step, count) for step, count, _ in left_out(process.dsn, buffer)] == [(1, 2)]
    again, _ = await buffer.batch(2)
    assert again.oldest_version == 1


async def test_of_a_mixed_batch_only_the_rollouts_can_be_too_old(
    process: BufferProcess, buffer: Buffer, tmp_path: Path
) -> None:
    size = 2 * ROWS
    plan = mixed_plan(
        tmp_path, num_expert_rows=size, max_staleness=0, train_batch_size=size, sync_offset=1
    )
    await begin(buffer, plan)
    await explore(buffer)
    head, rows = await buffer.batch(1)
    drawn = indexes(rows)
    assert [head.metrics[name] for name in (EXPERT, STALE)] == [ROWS, 0.0]
    await buffer.record(1)
    (head, rows), explored = await explored_batch(buffer, 2)
    assert {one.required_version for one in explored} == {1}
    assert {row.experience.eid.explore_step for row in rows[:ROWS]} == {3}
    assert [head.metrics[name] for name in (EXPERT, STALE)] == [ROWS, ROWS]
    assert sorted(drawn + indexes(rows)) == list(range(size)), "each row of data once an epoch"
    assert [(step, count) for step, count, _ in left_out(process.dsn, buffer)] == [(2, ROWS)]


async def test_rows_that_no_version_made_are_never_too_old_and_are_counted(
    buffer: Buffer, tmp_path: Path
) -> None:
    """The second group is another model's; the third stands behind it and is too old."""
    await begin(buffer, fresh_plan(tmp_path, max_staleness=0, train_batch_size=2, total_steps=2))
    first, second, third = (await buffer.lease()).assignments
    foreign = [buffer.complete(second, run) for run in second.runs]
    for result in foreign:
        del result.experiences[0].version_spans[:]
    await buffer.settle(*foreign)
    await buffer.finish_all([first, third])
    head, _ = await buffer.batch(1)
    assert UNVERSIONED not in head.metrics
    await buffer.record(1)
    head, rows = await buffer.batch(2)
    assert texts(rows) == ["1/1/0", "1/1/1"]
    assert [head.metrics[name] for name in (UNVERSIONED, STALE)] == [2.0, 0.0]
    await buffer.record(2)
    (head, _), _ = await explored_batch(buffer, 3)
    assert head.metrics[STALE] == 2.0 and UNVERSIONED not in head.metrics


async def test_stale_rows_are_counted_by_each_batch_and_told_of_once(
    process: BufferProcess, buffer: Buffer, tmp_path: Path
) -> None:
    """Of the six rows of an explore step a batch takes four, then the others are too old."""
    await begin(buffer, fresh_plan(tmp_path, max_staleness=0, train_batch_size=4))
    versions = []
    for step in range(1, 6):
        (_, rows), explored = await explored_batch(buffer, step)
        assert len(rows) == 4
        versions.append({one.required_version for one in explored})
        await buffer.record(step)
    assert versions == [{0}, {1}, {2}, {3}, {4}]
    events = await buffer.events("batch", count=5)
    batches = [one.batch for one in events if one.HasField("batch")]
    assert [one.metrics["sample/num_stale_rows"] for one in batches] == [0, 2, 2, 0, 2]
    [text] = [one.notice.text for one in events if one.HasField("notice")]
    assert text.startswith("2 rows are left out: made by weights older than version 1")
    assert sum(count for _, count, _ in left_out(process.dsn, buffer)) == 6


async def test_a_step_without_fresh_rows_is_refilled_with_the_newest_weights(
    buffer: Buffer, tmp_path: Path
) -> None:
    plan = fresh_plan(tmp_path, max_staleness=0, train_batch_size=2, total_steps=1)
    await begin(buffer, plan)
    composed = []
    for step in (1, 2, 3):
        (head, rows), explored = await explored_batch(buffer, step)
        assert {one.required_version for one in explored} == {step - 1}
        composed.append((texts(rows), head.metrics["sample/num_stale_rows"]))
        await buffer.record(step)
    assert composed == [
        (["1/0/0", "1/0/1"], 0.0),
        (["1/3/0", "1/3/1"], 4.0),
        (["1/4/0", "1/4/1"], 0.0),
    ]


async def test_a_step_that_lacks_fresh_rows_for_good_is_not_made(
    buffer: Buffer, tmp_path: Path
) -> None:
    plan = fresh_plan(tmp_path, max_staleness=0, train_batch_size=2, max_refill_rounds=0)
    await begin(buffer, plan)
    await explore(buffer)
    await buffer.batch(1)
    head, _ = await buffer.batch(2)
    assert head.state == pb.BatchHead.STATE_WAITING
    events = await buffer.events("notice")
    texts_of = [each.notice.text for each in events if each.HasField("notice")]
    assert any("fill fewer train steps than planned" in text for text in texts_of)


async def test_where_order_is_fixed_no_count_depends_on_when_rows_came(
    process: BufferProcess, tmp_path: Path
) -> None:
    """The third group is too old for the second batch, but stands behind it."""
    plan = fresh_plan(tmp_path, max_staleness=0, train_batch_size=2, total_steps=2)
    seen = []
    for is_late in (False, True):
        async with talk_to(process) as buffer:
            await begin(buffer, plan)
            first, second, third = (await buffer.lease()).assignments
            await buffer.finish_all([first])
            heads = [(await buffer.batch(1))[0]]
            await buffer.record(1)
            newer = [buffer.complete(second, run, Made(version=1)) for run in second.runs]
            await buffer.settle(*newer)
            if not is_late:
                await buffer.finish_all([third])
                await ready_rows(buffer, 4)
            heads.append((await buffer.batch(2))[0])
            await buffer.record(2)
            if is_late:
                await buffer.finish_all([third])
            (head, _), _ = await explored_batch(buffer, 3)
            seen.append([one.metrics["sample/num_stale_rows"] for one in (*heads, head)])
    assert seen == [[0.0, 0.0, 2.0]] * 2
