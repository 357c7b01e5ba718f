"""Batches that a stage has recorded, given again to another one: same rows, same order."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest

from tests.integration.buffer.harness import Buffer, talk_to
from tests.integration.buffer.looking import Looking
from tests.integration.buffer.plans import data_plan, mixed_plan, rollout_plan
from tests.integration.buffer.process import BufferProcess
from trinity.api.v1 import buffer_pb2 as pb
from trinity.api.v1 import query_pb2
from trinity.config.plan.parts import StoredBatches
from trinity.config.plan.stage_plan import StagePlan
from trinity.runtime.rpc.channel import open_channel

WEIGHTS = b"\x03" * 32


@dataclass
class Recorded:
    """A stage with three steps, of which the second has a checkpoint."""

    buffer: Buffer
    plan: StagePlan
    batches: list[list[pb.BatchRow]]

    def stored(self, first: int, last: int) -> StagePlan:
        """The plan that trains some of them again."""
        stored = StoredBatches(
            experiment_id=self.buffer.key.experiment_id,
            stage=self.buffer.key.stage,
            first_step=first,
            last_step=last,
        )
        changes = {"roles": ("trainer",), "eval_tasksets": (), "stored_batches": stored}
        return self.plan.model_copy(update=changes)


async def record(buffer: Buffer, plan: StagePlan) -> Recorded:
    await buffer.open(plan)
    await buffer.begin()
    await buffer.record(0)
    batches = []
    for step in (1, 2, 3):
        if plan.needs_rollout:
            await buffer.finish_all((await buffer.lease()).assignments)
        batches.append((await buffer.batch(step))[1])
        await buffer.report(step)
        await buffer.record(step, WEIGHTS)
    await buffer.checkpoint(2)
    return Recorded(buffer, plan, batches)


@pytest.fixture
async def recorded(buffer: Buffer, tmp_path: Path) -> Recorded:
    return await record(buffer, rollout_plan(tmp_path))


@pytest.fixture
async def again(process: BufferProcess) -> AsyncIterator[Buffer]:
    """Another experiment on the same buffer."""
    async with talk_to(process, stage="again") as calls:
        yield calls


async def test_the_same_rows_come_in_the_same_order(recorded: Recorded, again: Buffer) -> None:
    opened = await again.open(recorded.stored(1, 3))
    assert opened.total_train_steps == recorded.plan.total_train_steps
    await again.begin()
    for step in (1, 2, 3):
        head, rows = await again.batch(step)
        assert rows == recorded.batches[step - 1]
        assert not head.replayed
        await again.report(step)
    head, _ = await again.batch(4)
    assert (head.state, head.reason) == (
        pb.BatchHead.STATE_DRAINED,
        "the stored batches up to step 3 are trained",
    )


async def test_it_begins_from_the_checkpoint_before_its_first_step(
    recorded: Recorded, again: Buffer
) -> None:
    await again.open(recorded.stored(3, 3))
    begun = await again.begin()
    assert [one.step for one in begun.checkpoints] == [2]
    assert begun.checkpoints[0].path.startswith("/checkpoints/step-2-")
    assert begun.recorded_step == 2
    _, rows = await again.batch(3)
    assert rows == recorded.batches[2]


async def test_a_checkpoint_of_its_own_comes_before_the_one_it_began_from(
    recorded: Recorded, again: Buffer
) -> None:
    await again.open(recorded.stored(3, 3))
    await again.begin()
    await again.batch(3)
    removable = await again.checkpoint(3)
    assert not removable.removable, "the checkpoint it began from is another stage's"
    begun = await again.begin()
    assert [one.step for one in begun.checkpoints] == [3, 2]


async def test_rows_of_data_come_again_too(buffer: Buffer, again: Buffer, tmp_path: Path) -> None:
    recorded = await record(buffer, data_plan(tmp_path, num_rows=12))
    await again.open(recorded.stored(1, 3))
    await again.begin()
    assert [(await again.batch(step))[1] for step in (1, 2, 3)] == recorded.batches


async def test_batches_of_both_kinds_come_again(
    buffer: Buffer, again: Buffer, tmp_path: Path
) -> None:
    recorded = await record(buffer, mixed_plan(tmp_path))
    await again.open(recorded.stored(1, 3))
    await again.begin()
    assert [(await again.batch(step))[1] for step in (1, 2, 3)] == recorded.batches


async def test_it_is_said_whether_the_weights_are_the_same(
    recorded: Recorded, again: Buffer
) -> None:
    await again.open(recorded.stored(1, 3))
    await again.begin()
    for step, weights in ((1, WEIGHTS), (2, b"\x04" * 32)):
        await again.batch(step)
        await again.record(step, weights)
    notices = [one.notice.text for one in await again.events("notice", 2)]
    assert [text for text in notices if text] == [
        "version 1 has the same weights as before, bit for bit",
        "version 2 has other weights than before",
    ]


@pytest.mark.parametrize(
    ("first", "last", "said"),
    [
        (1, 4, "has recorded the batches of steps 1..3, not all of 1..4"),
        (2, 3, "no checkpoint of step 1 to begin step 2 from: begin with step 1 or 3"),
    ],
)
async def test_what_cannot_be_trained_again_is_refused(
    recorded: Recorded, again: Buffer, first: int, last: int, said: str
) -> None:
    with pytest.raises(grpc.aio.AioRpcError, match=said) as error:
        await again.open(recorded.stored(first, last))
    assert error.value.code() == grpc.StatusCode.FAILED_PRECONDITION


async def test_a_step_before_the_first_says_what_is_wrong(
    recorded: Recorded, again: Buffer
) -> None:
    await again.open(recorded.stored(3, 3))
    await again.begin()
    with pytest.raises(grpc.aio.AioRpcError, match="checkpoint of step 2 cannot be used"):
        await again.batch(1)


async def test_what_is_trained_again_is_not_deleted_meanwhile(
    process: BufferProcess, recorded: Recorded, again: Buffer
) -> None:
    wanted = query_pb2.ExperienceFilter(train_step=1)
    async with open_channel(process.address) as channel:
        looking = Looking.on(channel, recorded.buffer.pb_key)
        await again.open(recorded.stored(1, 3))
        with pytest.raises(grpc.aio.AioRpcError, match="batches are being trained again"):
            await looking.delete(wanted, "why")
        await again.cancel("enough")
        assert (await looking.delete(wanted, "why")).num_deleted == 6
    with pytest.raises(grpc.aio.AioRpcError, match=r"6 samples of the batches .* were deleted"):
        await again.open(recorded.stored(1, 3))


async def test_a_step_tells_its_rows_although_another_stage_holds_them(
    process: BufferProcess, recorded: Recorded, again: Buffer
) -> None:
    await again.open(recorded.stored(1, 1))
    await again.begin()
    await again.batch(1)
    async with open_channel(process.address) as channel:
        _, rows = await Looking.on(channel, again.pb_key).step(1)
    assert [row.experience.eid.stage for row in rows] == ["rft"] * 6


async def test_retraining_leaves_the_run_as_it_is(
    process: BufferProcess, recorded: Recorded, again: Buffer
) -> None:
    async with open_channel(process.address) as channel:
        looking = Looking.on(channel, recorded.buffer.pb_key)
        before = await looking.list()
        await again.open(recorded.stored(1, 2))
        await again.begin()
        for step in (1, 2):
            await again.batch(step)
            await again.report(step)
        assert await looking.list() == before
