"""Samples by priority, and more than once: the same batches, whoever dies and whatever arrives."""

import asyncio
import random
import statistics
from collections import Counter
from pathlib import Path

import psycopg
import pytest

from tests.integration.buffer.harness import Buffer, talk_to
from tests.integration.buffer.looking import Looking
from tests.integration.buffer.made import Made
from tests.integration.buffer.plans import ROWS, rollout_plan
from tests.integration.buffer.process import BufferProcess
from tests.support.replay_model import Place, Rules, batches
from trinity.api.v1 import buffer_pb2 as pb
from trinity.api.v1 import query_pb2
from trinity.cli.status import replay_lines
from trinity.config.plan.stage_plan import StagePlan
from trinity.run.state import state_of
from trinity.runtime.rpc.channel import open_channel

NUM_STEPS = 4
SIZE = 9
DEADLY = "tests.integration.buffer.own_priorities.deadly"
WAITING = pb.BatchHead.STATE_WAITING
FILTERED = """
SELECT count(*), min(reason) FROM buffer.experience
WHERE experiment_id = %s AND state = 'filtered'
"""


def replay_plan(
    directory: Path,
    *,
    train_batch_size: int = SIZE,
    capacity: int = 1000,
    algorithm: dict[str, object] | None = None,
    sync_offset: int = 0,
    total_steps: int = NUM_STEPS,
    **replay: object,
) -> StagePlan:
    """Six samples an explore step, nine a batch."""
    replayed = {"enable": True, "reuse_cooldown_time": 1, **replay}
    return rollout_plan(
        directory,
        train_batch_size=train_batch_size,
        algorithm=algorithm,
        sync_offset=sync_offset,
        total_steps=total_steps,
        trainer_input={"experience_buffer": {"capacity": capacity, "replay_buffer": replayed}},
    )


def places(rows: list[pb.BatchRow]) -> list[Place]:
    """Explore step, position and run."""
    texts = [row.experience.sequence.response_text.split("/") for row in rows]
    return [(int(step), int(position), int(run)) for step, position, run in texts]


async def begin(buffer: Buffer, plan: StagePlan, seed: int = 7) -> None:
    await buffer.open(plan, seed)
    await buffer.begin()
    await buffer.record(0)


async def explore(buffer: Buffer, seed: int = 0) -> None:
    """Roll out all that is handed out now, in an order of its own."""
    assignments = (await buffer.lease()).assignments
    runs = [(one, run) for one in assignments for run in one.runs]
    random.Random(seed).shuffle(runs)
    for one, run in runs:
        await buffer.settle(buffer.complete(one, run, Made(reward=float(run))))


async def train(buffer: Buffer, step: int) -> tuple[pb.BatchHead, list[Place]]:
    head, rows = await buffer.batch(step)
    assert head.state == pb.BatchHead.STATE_READY, head.reason
    await buffer.report(step)
    await buffer.record(step)
    return head, places(rows)


async def whole(
    process: BufferProcess, plan: StagePlan, *, order: int = 0, seed: int = 7
) -> tuple[list[pb.BatchHead], list[list[Place]]]:
    """Every batch of a stage."""
    async with talk_to(process) as buffer:
        await begin(buffer, plan, seed)
        heads, found = [], []
        for step in range(1, NUM_STEPS + 1):
            await explore(buffer, order + step)
            head, rows = await train(buffer, step)
            heads.append(head)
            found.append(rows)
    return heads, found


def rolled_out() -> list[tuple[Place, int]]:
    return [
        ((step, position, run), step - 1)
        for step in range(1, NUM_STEPS + 1)
        for position in range(3)
        for run in range(2)
    ]


def rules(**changes: object) -> Rules:
    usual: dict[str, object] = {
        "num_steps": NUM_STEPS,
        "size": SIZE,
        "rows_per_explore_step": ROWS,
        "cooldown": 1,
    }
    return Rules(**(usual | changes))  # type: ignore[arg-type]


def an_hour_passes(process: BufferProcess) -> None:
    with psycopg.connect(process.dsn) as connection:
        connection.execute("UPDATE buffer.batch SET composed_at = composed_at - interval '1 hour'")


async def test_what_rests_for_a_time_comes_back_after_it(
    process: BufferProcess, tmp_path: Path
) -> None:
    plan = replay_plan(tmp_path, reuse_cooldown_time="1h")
    async with talk_to(process) as buffer:
        await begin(buffer, plan)
        found = []
        for step in (1, 2, 3):
            await explore(buffer, step)
            if step == 3:
                an_hour_passes(process)
            found.append((await train(buffer, step))[1])
    assert [len(rows) for rows in found] == [6, 6, SIZE]
    assert not set(found[0]) & set(found[1]), "those of the first batch rest"


@pytest.mark.parametrize("cooldown", [1, 2])
async def test_batches_fill_up_with_what_was_trained_before(
    process: BufferProcess, tmp_path: Path, cooldown: int
) -> None:
    plan = replay_plan(tmp_path, reuse_cooldown_time=cooldown)
    heads, found = await whole(process, plan)
    expected = batches(rolled_out(), rules(cooldown=cooldown))
    assert found == expected
    assert [head.metrics["replay/num_replayed_rows"] for head in heads] == [
        float(len(rows) - ROWS) for rows in expected
    ]
    assert max(Counter(one for rows in found for one in rows).values()) > 1
    assert all(len(set(rows)) == len(rows) for rows in found)
    assert heads[1 + cooldown - 1].metrics["replay/use_count/max"] == 1


async def test_the_status_says_what_was_trained_again(buffer: Buffer, tmp_path: Path) -> None:
    await begin(buffer, replay_plan(tmp_path, total_steps=NUM_STEPS + 1))
    for step in range(1, NUM_STEPS + 1):
        await explore(buffer)
        await train(buffer, step)
    status = pb.GetBufferStatusResponse(stages=await buffer.stages())
    assert list(replay_lines(state_of("", status).work or ())) == [
        "rft: 24 samples trained, 9 rows of batches were trained before, one sample at most 2 "
        "times; 24 may come again, 0 were dropped untrained\n"
    ]


async def test_what_is_trained_again_counts_as_often_as_it_is(
    process: BufferProcess, buffer: Buffer, tmp_path: Path
) -> None:
    """Beside all that was generated; samples are as long as the number of their explore step."""
    await begin(buffer, replay_plan(tmp_path))
    trained: list[int] = []
    for step in range(1, NUM_STEPS + 1):
        for one in (await buffer.lease()).assignments:
            for run in one.runs:
                await buffer.settle(buffer.complete(one, run, Made(num_tokens=step)))
        _, rows = await train(buffer, step)
        trained += [explore_step for explore_step, _, _ in rows]
    async with open_channel(process.address) as channel:
        found = await Looking.on(channel, buffer.pb_key).population()
    generated = [step for step in range(1, NUM_STEPS + 1) for _ in range(ROWS)]
    assert len(trained) > len(generated) == found.num_generated == found.num_trained
    lengths = found.comparisons[0]
    assert lengths.generated_mean == statistics.mean(generated)
    assert lengths.trained_mean == pytest.approx(statistics.mean(trained))
    assert lengths.shift == pytest.approx(_apart(trained, generated))
    assert not lengths.is_significant


def _apart(first: list[int], second: list[int]) -> float:
    """The greatest difference of their distribution functions."""
    return max(
        abs(
            statistics.mean(one <= at for one in first)
            - statistics.mean(one <= at for one in second)
        )
        for at in second
    )


async def test_uses_are_limited(process: BufferProcess, tmp_path: Path) -> None:
    plan = replay_plan(
        tmp_path,
        priority_fn="decay_limit_randomization",
        priority_fn_args={"use_count_limit": 2, "decay": 0.1},
        train_batch_size=12,
    )
    heads, found = await whole(process, plan)
    assert found == batches(rolled_out(), rules(size=12, use_limit=2, decay=0.1))
    assert max(Counter(one for rows in found for one in rows).values()) == 2
    assert heads[-1].metrics["replay/num_retired_rows"] == ROWS


async def test_the_order_of_arrival_changes_nothing_and_chance_repeats(
    process: BufferProcess, tmp_path: Path
) -> None:
    plan = replay_plan(
        tmp_path,
        priority_fn="decay_limit_randomization",
        priority_fn_args={"sigma": 3.0, "use_count_limit": 0},
    )
    _, first = await whole(process, plan)
    assert (await whole(process, plan, order=100))[1] == first
    assert (await whole(process, plan, seed=8))[1] != first


async def test_a_batch_that_is_asked_for_again_is_the_same_and_counts_once(
    buffer: Buffer, tmp_path: Path
) -> None:
    await begin(buffer, replay_plan(tmp_path))
    await explore(buffer)
    _, first = await train(buffer, 1)
    await explore(buffer)
    _, second = await train(buffer, 2)
    await buffer.begin()
    assert places((await buffer.batch(1))[1]) == first
    head, rows = await buffer.batch(2)
    assert (places(rows), head.replayed) == (second, True)
    await buffer.record(2)
    await explore(buffer)
    _, third = await train(buffer, 3)
    assert [first, second, third] == batches(rolled_out(), rules(num_steps=3))


async def test_what_a_person_excludes_is_not_replayed_and_may_come_back(
    process: BufferProcess, tmp_path: Path
) -> None:
    first = query_pb2.ExperienceFilter(train_step=1)
    words = "a wrong label"
    async with talk_to(process) as buffer, open_channel(process.address) as channel:
        looking = Looking.on(channel, buffer.pb_key)
        await begin(buffer, replay_plan(tmp_path, train_batch_size=3 * ROWS))
        trained = []
        for step in (1, 2, 3):
            await explore(buffer)
            trained.append(set((await train(buffer, step))[1]))
            if step == 1:
                answer = await looking.exclude(first, words)
                assert (answer.num_excluded, answer.num_batched) == (0, ROWS)
                shown = {(one.state, one.reason) for one in await looking.list(first)}
                assert shown == {(query_pb2.EXPERIENCE_STATE_BATCHED, words)}
            if step == 2:
                everything = query_pb2.ExperienceFilter(reward_min=0.0)
                would = await looking.include(everything, dry_run=True)
                assert (would.num_included, would.num_too_late) == (ROWS, 0)
                assert await looking.include(everything) == would
                assert (await looking.include(everything)).num_included == 0
                assert not any(one.reason for one in await looking.list(first))
    assert not trained[0] & trained[1]
    assert trained[0] < trained[2]


async def test_what_is_deleted_waits_no_longer(process: BufferProcess, tmp_path: Path) -> None:
    first = query_pb2.ExperienceFilter(train_step=1)
    async with talk_to(process) as buffer, open_channel(process.address) as channel:
        await begin(buffer, replay_plan(tmp_path))
        await explore(buffer)
        await train(buffer, 1)
        await buffer.checkpoint(1)
        looking = Looking.on(channel, buffer.pb_key)
        await looking.exclude(query_pb2.ExperienceFilter(task_index=0, train_step=1), "why")
        assert (await looking.delete(first, "private data")).num_deleted == ROWS
        assert await looking.include(first) == query_pb2.IncludeExperiencesResponse()
        status = pb.GetBufferStatusResponse(stages=await buffer.stages())
        [line] = replay_lines(state_of("", status).work or ())
        assert "; 0 may come again" in line


@pytest.mark.thorough
async def test_a_buffer_that_was_killed_composes_as_if_it_had_not_been(
    own_process: BufferProcess, tmp_path: Path
) -> None:
    found = []
    async with talk_to(own_process) as buffer:
        await begin(buffer, replay_plan(tmp_path))
        for step in range(1, NUM_STEPS + 1):
            await explore(buffer)
            own_process.kill()
            await own_process.start()
            async with talk_to(own_process) as again:
                again.key, again.incarnation = buffer.key, buffer.incarnation
                _, rows = await train(again, step)
            found.append(rows)
    assert found == batches(rolled_out(), rules())


async def test_lost_rows_are_made_up_for_by_replay_not_by_further_tasks(
    buffer: Buffer, tmp_path: Path
) -> None:
    await begin(buffer, replay_plan(tmp_path, train_batch_size=ROWS))
    await explore(buffer)
    _, first = await train(buffer, 1)
    work = (await buffer.lease()).assignments
    lost = [(one, run, attempt) for one in work[:2] for run in one.runs for attempt in (0, 1)]
    await buffer.settle(*(buffer.fail(*each) for each in lost))
    await buffer.finish_all(work[2:])
    _, second = await train(buffer, 2)
    assert second == [(2, 2, 0), (2, 2, 1), *first[:4]]


async def test_what_is_too_old_is_not_replayed_either(
    process: BufferProcess, tmp_path: Path
) -> None:
    strict = {
        "repeat_times": 2,
        "sample_strategy": "staleness_control",
        "sample_strategy_args": {"max_staleness": 1},
    }
    plan = replay_plan(tmp_path, algorithm=strict, train_batch_size=18)
    heads, found = await whole(process, plan)
    oldest = [plan.oldest_version(step) for step in range(1, NUM_STEPS + 1)]
    assert oldest[-1] > 0
    assert found == batches(rolled_out(), rules(size=18, oldest=oldest))
    assert heads[-1].metrics["replay/num_retired_rows"] == ROWS


async def test_excluded_samples_are_not_trained_again(
    buffer: Buffer, process: BufferProcess, tmp_path: Path
) -> None:
    await begin(buffer, replay_plan(tmp_path))
    await explore(buffer)
    _, first = await train(buffer, 1)
    async with open_channel(process.address) as channel:
        wanted = query_pb2.ExperienceFilter(explore_step=1)
        await Looking.on(channel, buffer.pb_key).exclude(wanted, "a wrong label")
    await explore(buffer)
    _, second = await train(buffer, 2)
    assert not set(first) & set(second)


async def test_dropping_is_asked_for_counted_and_explained(
    buffer: Buffer, shared_dsn: str, tmp_path: Path
) -> None:
    plan = replay_plan(tmp_path, train_batch_size=2, capacity=4, when_full="drop")
    await begin(buffer, plan)
    await explore(buffer)
    head, rows = await train(buffer, 1)
    assert rows == [(1, 0, 0), (1, 0, 1)]
    assert head.metrics["replay/num_dropped_rows"] == 2
    with psycopg.connect(shared_dsn) as connection:
        left_out = connection.execute(FILTERED, [buffer.key.experiment_id]).fetchone()
    assert left_out == (
        2,
        "the last in order when the batch of train step 1 was composed, and the replay buffer "
        "has room for 4 (`capacity`, `when_full: drop`)",
    )


async def test_nothing_is_dropped_that_nobody_asked_for(buffer: Buffer, tmp_path: Path) -> None:
    plan = replay_plan(tmp_path, train_batch_size=2, capacity=2, total_steps=2)
    await begin(buffer, plan)
    await explore(buffer)
    trained = []
    for step in range(1, 7):
        if step == 4:
            await explore(buffer)
        head, rows = await train(buffer, step)
        assert head.metrics["replay/num_dropped_rows"] == 0
        trained += rows
    assert sorted(trained) == [place for place, _ in rolled_out()[: 2 * ROWS]]


async def test_with_an_offset_fresh_samples_are_waited_for(buffer: Buffer, tmp_path: Path) -> None:
    await begin(buffer, replay_plan(tmp_path, sync_offset=1))
    work = (await buffer.lease()).assignments
    assert len(work) == 6
    await buffer.finish_all(work[:2])
    head, _ = await buffer.batch(1, wait_seconds=0)
    assert head.state == pb.BatchHead.STATE_WAITING
    await buffer.finish_all(work[3:])
    async with asyncio.timeout(30):
        _, first = await train(buffer, 1)
    assert len(first) >= ROWS
    assert len(set(first)) == len(first)


async def test_a_users_function_orders_them(process: BufferProcess, tmp_path: Path) -> None:
    name = "tests.integration.buffer.own_priorities.oldest_first"
    _, found = await whole(process, replay_plan(tmp_path, priority_fn=name))
    assert found[1] == [place for place, _ in rolled_out()[:SIZE]]
    assert max(Counter(one for rows in found for one in rows).values()) == 2


def deadly_plan(folder: Path, deaths: int, how: str = "SIGKILL") -> StagePlan:
    """It dies in the second train step, whose candidates were used before."""
    noted = folder / "deaths"
    noted.mkdir(exist_ok=True)
    arguments = {"folder": str(noted), "deaths": deaths, "how": how}
    return replay_plan(folder, priority_fn=DEADLY, priority_fn_args=arguments)


@pytest.mark.parametrize("how", ["SIGKILL", "SIGSTOP"])
async def test_a_batch_is_the_same_when_the_process_of_its_function_is_lost_meanwhile(
    buffer_dsn: str, nats_url: str, tmp_path: Path, how: str
) -> None:
    extra = {"TRINITY_BUFFER_PRIORITY_SECONDS": "1"}
    async with BufferProcess(buffer_dsn, nats_url, tmp_path / "buffer.log", extra) as process:
        _, found = await whole(process, deadly_plan(tmp_path, deaths=1, how=how))
        assert len(list((tmp_path / "deaths").iterdir())) == 1
        assert (await whole(process, deadly_plan(tmp_path, deaths=0)))[1] == found


async def test_a_process_of_a_function_that_dies_each_time_ends_the_stage(
    buffer: Buffer, tmp_path: Path
) -> None:
    await begin(buffer, deadly_plan(tmp_path, deaths=100))
    await explore(buffer)
    await train(buffer, 1)
    await explore(buffer)
    name, why = f"`priority_fn: {DEADLY}`", "the process that calls it ended (by SIGKILL)"
    reasons = set()
    while (head := (await buffer.batch(2, wait_seconds=0))[0]).state == WAITING:
        reasons.add(head.reason)
    assert f"{name} is called again: {why}" in reasons
    assert head.state == pb.BatchHead.STATE_CANCELLED
    assert head.reason == f"{name} cannot be used: {why}, 3 times"
    assert len(list((tmp_path / "deaths").iterdir())) == 3


async def test_a_function_that_cannot_be_used_ends_the_stage_with_its_words(
    buffer: Buffer, tmp_path: Path
) -> None:
    name = "tests.integration.buffer.own_priorities.broken"
    await begin(buffer, replay_plan(tmp_path, priority_fn=name))
    await explore(buffer)
    head, _ = await buffer.batch(1)
    assert head.state == pb.BatchHead.STATE_CANCELLED
    assert head.reason == (
        f"`priority_fn: {name}` cannot be used: ZeroDivisionError: float division by zero"
    )
