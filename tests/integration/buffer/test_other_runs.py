"""A stage that trains on what another run has stored, and what keeps that there meanwhile."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import grpc
import pytest

from tests.integration.buffer.harness import Buffer, talk_to
from tests.integration.buffer.looking import Looking
from tests.integration.buffer.plans import REPEAT_TIMES, ROWS, Sizes, rollout_plan, with_advantage
from tests.integration.buffer.process import BufferProcess
from tests.integration.buffer.test_retention import begin, removed, there, train
from tests.integration.buffer.test_retention import own_process as own_process
from tests.unit.config.builders import stage
from trinity.api.v1 import buffer_pb2 as pb
from trinity.api.v1 import query_pb2
from trinity.config.plan.parts import StoredBatches, StoredRollouts
from trinity.config.plan.stage_plan import StagePlan
from trinity.runtime.rpc.channel import open_channel

NUM_STEPS = 3
WANTED: Sizes = {"num_tasks": 60, "total_steps": 12}
OTHER_RUN = "demo/explored"
pytestmark = pytest.mark.timeout(180)


@dataclass
class Source:
    """A run with three train steps."""

    buffer: Buffer
    plan: StagePlan

    def taken(self, train_batch_size: int = ROWS, **changes: object) -> StagePlan:
        """The plan of another run that trains on its experiences."""
        plan = stage(
            mode="train",
            algorithm={"repeat_times": REPEAT_TIMES},
            buffer={
                "total_steps": None,
                "train_batch_size": train_batch_size,
                "trainer_input": {"experience_buffer": {"source_run": OTHER_RUN}},
                **changes,
            },
        )
        stored = StoredRollouts(
            experiment_id=self.buffer.key.experiment_id, stage=self.buffer.key.stage, run=OTHER_RUN
        )
        return plan.model_copy(update={"stored_rollouts": stored})


async def trained(buffer: Buffer, plan: StagePlan) -> Source:
    await begin(buffer, plan)
    for step in range(1, NUM_STEPS + 1):
        await train(buffer, step)
    return Source(buffer, plan)


@pytest.fixture
async def source(buffer: Buffer, tmp_path: Path) -> Source:
    """One that was stopped."""
    source = await trained(buffer, rollout_plan(tmp_path))
    await buffer.cancel("enough")
    return source


@pytest.fixture
async def taker(process: BufferProcess) -> AsyncIterator[Buffer]:
    async with talk_to(process, stage="learn") as calls:
        yield calls


async def steps(buffer: Buffer, number: int) -> list[list[pb.BatchRow]]:
    batches = []
    for step in range(1, number + 1):
        batches.append((await buffer.batch(step))[1])
        await buffer.report(step)
    return batches


async def test_what_another_run_has_stored_is_trained_on_and_stays_as_it_is(
    process: BufferProcess, source: Source, taker: Buffer
) -> None:
    async with open_channel(process.address) as channel:
        looking = Looking.on(channel, source.buffer.pb_key)
        before = await looking.list(with_content=True)
        opened = await taker.open(source.taken())
        assert opened.total_train_steps == NUM_STEPS
        await taker.begin()
        await steps(taker, NUM_STEPS)
        assert (await taker.batch(NUM_STEPS + 1))[0].state == pb.BatchHead.STATE_DRAINED
        assert await looking.list(with_content=True) == before
        ids = []
        for step in range(1, NUM_STEPS + 1):
            head, rows = await Looking.on(channel, taker.pb_key).step(step)
            assert (head.rows_from, head.rows_from_run) == (source.buffer.pb_key, OTHER_RUN)
            ids += [row.experience.id for row in rows]
    assert sorted(ids) == sorted(one.id for one in before)


async def test_it_is_said_whose_experiences_they_are(source: Source, taker: Buffer) -> None:
    await taker.open(source.taken())
    notice = (await taker.events("notice"))[-1]
    assert notice.notice.text == f"trains on 18 experiences of stage rft of run {OTHER_RUN}"


async def test_all_come_once_before_any_comes_twice(source: Source, taker: Buffer) -> None:
    opened = await taker.open(source.taken(train_batch_size=12, total_epochs=2))
    assert opened.total_train_steps == 3
    await taker.begin()
    rows = [row.experience.id for batch in await steps(taker, 3) for row in batch]
    assert len(set(rows[:18])) == 18
    assert sorted(rows[18:]) == sorted(rows[:18])


async def test_a_run_that_goes_on_is_not_trained_on(
    buffer: Buffer, taker: Buffer, tmp_path: Path
) -> None:
    source = await trained(buffer, rollout_plan(tmp_path))
    await refused(taker, source.taken(), f"of run {OTHER_RUN} has stored, which is still running")


async def test_no_run_takes_from_another_tenants(source: Source, taker: Buffer) -> None:
    stranger = replace(taker, key=replace(taker.key, tenant="stranger"))
    await refused(stranger, source.taken(), "there is no such stage here")


async def test_advantages_of_another_function_are_refused(source: Source, taker: Buffer) -> None:
    said = "`algorithm.advantage_fn: grpo` with its arguments is not that of stage rft of run"
    await refused(taker, with_advantage(source.taken(), "grpo", epsilon=0.1), said)


async def test_what_is_excluded_there_is_not_trained_on_whatever_batch_it_was_in(
    process: BufferProcess, source: Source, taker: Buffer
) -> None:
    async with open_channel(process.address) as channel:
        looking = Looking.on(channel, source.buffer.pb_key)
        wrong = query_pb2.ExperienceFilter(explore_step=1)
        answer = await looking.exclude(wrong, "a wrong label")
        assert (answer.num_excluded, answer.num_batched) == (0, ROWS)
        taken_out = {one.id for one in await looking.list(wrong)}
        await looking.exclude(query_pb2.ExperienceFilter(explore_step=2), "not sure")
        included = await looking.include(query_pb2.ExperienceFilter(explore_step=2))
        assert (included.num_included, included.num_too_late) == (ROWS, 0)
        await taker.open(source.taken())
        assert "12 experiences" in (await taker.events("notice"))[-1].notice.text
        await taker.begin()
        trained = {row.experience.id for batch in await steps(taker, 2) for row in batch}
        assert len(trained) == 2 * ROWS
        assert not trained & taken_out
        states = {(one.state, one.reason) for one in await looking.list(wrong)}
        assert states == {(query_pb2.EXPERIENCE_STATE_BATCHED, "a wrong label")}


async def test_too_few_are_refused(source: Source, taker: Buffer) -> None:
    await refused(taker, source.taken(train_batch_size=20), "has stored 18 experiences, a batch")


async def refused(taker: Buffer, plan: StagePlan, said: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await taker.open(plan)
    assert error.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert said in (error.value.details() or "")


async def test_what_is_trained_on_cannot_be_deleted_and_later_its_lack_is_said(
    process: BufferProcess, source: Source, taker: Buffer
) -> None:
    wanted = query_pb2.ExperienceFilter(explore_step=1)
    await taker.open(source.taken())
    await taker.begin()
    await taker.batch(1)
    async with open_channel(process.address) as channel:
        looking = Looking.on(channel, source.buffer.pb_key)
        with pytest.raises(grpc.aio.AioRpcError, match="they are being trained again"):
            await looking.delete(wanted, "why")
        await taker.cancel("enough")
        assert (await looking.delete(wanted, "why")).num_deleted == ROWS
    await taker.open(source.taken())
    await taker.begin()
    with pytest.raises(grpc.aio.AioRpcError, match=r"contents of 6 samples of stage rft are gone"):
        await taker.batch(1)


async def test_its_batches_can_be_trained_again(
    process: BufferProcess, source: Source, taker: Buffer
) -> None:
    plan = source.taken()
    await taker.open(plan)
    await taker.begin()
    batches = await steps(taker, NUM_STEPS)
    stored = StoredBatches(
        experiment_id=taker.key.experiment_id, stage="learn", first_step=1, last_step=NUM_STEPS
    )
    async with talk_to(process, stage="learn") as again:
        await again.open(plan.model_copy(update={"stored_batches": stored}))
        await again.begin()
        assert await steps(again, NUM_STEPS) == batches


async def test_contents_that_are_gone_are_told_of(
    own_process: BufferProcess, own_buffer: Buffer, tmp_path: Path
) -> None:
    source = await trained(own_buffer, rollout_plan(tmp_path, keep_steps=0, **WANTED))
    await removed(own_process, own_buffer, 2)
    await own_buffer.cancel("enough")
    async with talk_to(own_process, stage="learn") as taker:
        assert (await taker.open(source.taken())).total_train_steps == 1
        notice = (await taker.events("notice"))[-1]
        assert notice.notice.text == (
            f"trains on 6 experiences of stage rft of run {OTHER_RUN}; the contents of 12 further "
            "ones were removed there (`buffer.keep_steps: 0`)"
        )
        await refused(
            replace(taker, key=replace(taker.key, stage="more")),
            source.taken(train_batch_size=12),
            "with contents (those of 12 more were removed, `buffer.keep_steps: 0`)",
        )


async def test_retention_waits_for_those_who_train_on_it(
    own_process: BufferProcess, own_buffer: Buffer, tmp_path: Path
) -> None:
    source = await trained(own_buffer, rollout_plan(tmp_path, **WANTED))
    await own_buffer.cancel("enough")
    async with (
        talk_to(own_process, stage="learn") as taker,
        talk_to(own_process) as marker,
    ):
        await taker.open(source.taken())
        await taker.begin()
        await own_buffer.open(rollout_plan(tmp_path, keep_steps=0, **WANTED))
        await own_buffer.begin()
        await own_buffer.record(NUM_STEPS)
        await train(own_buffer, NUM_STEPS + 1)
        await trained(marker, rollout_plan(tmp_path, keep_steps=0, **WANTED))
        await removed(own_process, marker, 2)
        assert there(own_process, own_buffer)[: NUM_STEPS + 1] == [1, 2, 3, 4]
        await steps(taker, NUM_STEPS)
        await taker.record(NUM_STEPS)
        await taker.finish(NUM_STEPS)
        await removed(own_process, own_buffer, NUM_STEPS)


async def test_retention_waits_for_those_who_may_go_on_to_train_on_it(
    own_process: BufferProcess, own_buffer: Buffer, tmp_path: Path
) -> None:
    """Whoever failed trains the batches again that no checkpoint holds."""
    kept = rollout_plan(tmp_path, keep_steps=0, **WANTED)
    source = await trained(own_buffer, rollout_plan(tmp_path, **WANTED))
    await own_buffer.cancel("enough")
    async with (
        talk_to(own_process, stage="learn") as taker,
        talk_to(own_process) as marker,
    ):
        await taker.open(source.taken())
        await taker.begin()
        batches = await steps(taker, 2)
        await taker.checkpoint(1)
        await taker.cancel("out of memory")
        await own_buffer.open(kept)
        await own_buffer.begin()
        await own_buffer.record(NUM_STEPS)
        for step in (NUM_STEPS + 1, NUM_STEPS + 2):
            await train(own_buffer, step)
        await removed(own_process, own_buffer, 3)
        await trained(marker, kept)
        await removed(own_process, marker, 2)
        assert there(own_process, own_buffer) == [2, 5, 6]
        await own_buffer.cancel("enough")
        await taker.open(source.taken())
        await taker.begin()
        assert (await taker.batch(2))[1] == batches[1]
