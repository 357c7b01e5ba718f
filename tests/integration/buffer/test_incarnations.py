"""The trainer's lives: the newest one alone may act, and goes on where the last one was."""

from pathlib import Path

import grpc
import pytest

from tests.integration.buffer.harness import Buffer
from tests.integration.buffer.plans import rollout_plan
from trinity.api.v1 import buffer_pb2 as pb

Lease = pb.LeaseAssignmentsResponse


async def train(buffer: Buffer, step: int) -> None:
    """One whole step: rollouts, batch, report, new version."""
    await buffer.finish_all((await buffer.lease()).assignments)
    await buffer.batch(step)
    await buffer.report(step, loss=1.0 / step)
    await buffer.record(step)


async def test_an_older_incarnation_is_fenced_everywhere(buffer: Buffer, tmp_path: Path) -> None:
    await buffer.open(rollout_plan(tmp_path))
    await buffer.begin()
    await buffer.record(0)
    await train(buffer, 1)
    old = buffer.another_explorer()
    await buffer.begin()
    for call in (
        old.record(1),
        old.batch(1),
        old.report(1),
        old.checkpoint(1),
        old.finish(1),
    ):
        with pytest.raises(grpc.aio.AioRpcError, match="was replaced by 2") as error:
            await call
        assert error.value.code() == grpc.StatusCode.ABORTED


async def test_no_lease_is_granted_before_the_new_incarnation_has_published(
    buffer: Buffer, tmp_path: Path
) -> None:
    await buffer.open(rollout_plan(tmp_path))
    await buffer.begin()
    await buffer.record(0)
    await train(buffer, 1)
    begun = await buffer.begin()
    assert (begun.incarnation, begun.recorded_step, begun.newest_version.version) == (2, 1, 1)
    refused = await buffer.lease(wait_seconds=0)
    assert refused.state == Lease.STATE_WAITING
    assert refused.reason == "the trainer has not published weights yet"
    await buffer.record(0)
    refused = await buffer.lease(wait_seconds=0)
    assert "needs weights version 1" in refused.reason
    await buffer.record(1)
    granted = await buffer.lease()
    assert {one.required_incarnation for one in granted.assignments} == {2}


async def test_weights_that_open_work_needs_are_kept(buffer: Buffer, tmp_path: Path) -> None:
    await buffer.open(rollout_plan(tmp_path, sync_offset=1, total_steps=6))
    await buffer.begin()
    assert await buffer.record(0) == []
    work = (await buffer.lease()).assignments
    assert {one.explore_step for one in work} == {1, 2}
    await buffer.finish_all(work[:3])
    await buffer.batch(1)
    assert list((await buffer.report(1)).pinned_versions) == [0]
    assert await buffer.record(1) == [0]
    await buffer.lease()
    await buffer.finish_all(work[3:])
    assert await buffer.record(1) == [1]


async def test_checkpoints_that_may_go_are_told_until_the_next_commit(
    buffer: Buffer, tmp_path: Path
) -> None:
    await buffer.open(rollout_plan(tmp_path))
    await buffer.begin()
    await buffer.record(0)

    async def removable(step: int) -> list[tuple[int, int]]:
        answer = await buffer.checkpoint(step)
        return [(one.step, one.incarnation) for one in answer.removable]

    for step in (1, 2):
        await train(buffer, step)
        assert await removable(step) == []
    await train(buffer, 3)
    assert await removable(3) == [(1, 1)]
    assert await removable(3) == [(1, 1)]
    await train(buffer, 4)
    assert await removable(4) == [(2, 1)]
    # Whether the life before has deleted what it was told is not known.
    await buffer.begin()
    assert await removable(4) == [(3, 1), (2, 1)]


async def test_what_was_just_written_is_kept_where_later_steps_could_not_be_read(
    buffer: Buffer, tmp_path: Path
) -> None:
    await buffer.open(rollout_plan(tmp_path))
    await buffer.begin()
    await buffer.record(0)
    for step in (1, 2, 3):
        await train(buffer, step)
        await buffer.checkpoint(step)
    await buffer.begin()
    kept = {(2, 1), (3, 1)}
    for step in (1, 2):
        answer = await buffer.checkpoint(step)
        kept.add((step, buffer.incarnation))
        kept -= {(one.step, one.incarnation) for one in answer.removable}
        assert kept == {(3, 1), (step, 2)}
    begun = await buffer.begin()
    assert {(one.step, one.incarnation) for one in begun.checkpoints} == kept


async def test_a_resumed_trainer_finds_its_checkpoints_and_trains_recorded_batches_again(
    buffer: Buffer, tmp_path: Path
) -> None:
    await buffer.open(rollout_plan(tmp_path))
    await buffer.begin()
    await buffer.record(0)
    removable = []
    for step in (1, 2, 3):
        await train(buffer, step)
        removable = list((await buffer.checkpoint(step)).removable)
    assert [one.step for one in removable] == [1]
    batches = [(await buffer.batch(step))[1] for step in (1, 2, 3)]
    begun = await buffer.begin()
    assert [(one.step, one.incarnation) for one in begun.checkpoints] == [(3, 1), (2, 1)]
    assert begun.recorded_step == 3 and begun.finished_step == 0
    assert [(await buffer.batch(step))[1] for step in (1, 2, 3)] == batches
    await buffer.report(3)
    await buffer.report(3)
    events = await buffer.events("step", count=4)
    trained = [event.step for event in events if event.WhichOneof("event") == "step"]
    assert [(one.step, one.incarnation, one.replayed) for one in trained] == [
        (1, 1, False),
        (2, 1, False),
        (3, 1, False),
        (3, 2, True),
    ]
    assert trained[1].metrics["loss"] == 0.5


async def test_other_weights_under_a_version_are_refused_or_told(
    buffer: Buffer, tmp_path: Path
) -> None:
    await buffer.open(rollout_plan(tmp_path))
    await buffer.begin()
    await buffer.record(0)
    await buffer.record(0)
    with pytest.raises(grpc.aio.AioRpcError, match="other weights"):
        await buffer.record(0, b"\x09" * 32)
    with pytest.raises(grpc.aio.AioRpcError, match="cannot exist"):
        await buffer.record(1)
    await buffer.begin()
    await buffer.record(0, b"\x09" * 32)
    notice = (await buffer.events("notice"))[-1].notice
    assert "version 0 came out with other weights" in notice.text
    begun = await buffer.begin()
    assert begun.newest_version.weights_sha256 == b"\x09" * 32


async def test_weights_of_release_0_1_are_compared_by_its_root(
    buffer: Buffer, tmp_path: Path
) -> None:
    """The next life says both roots, and later ones that of BLAKE3 alone."""
    await buffer.open(rollout_plan(tmp_path))
    for roots in ((b"\x01" * 32, b""), (b"\x01" * 32, b"\x02" * 32), (b"", b"\x02" * 32)):
        await buffer.begin()
        await buffer.record(0, *roots)
    assert (await buffer.begin()).newest_version.weights_blake3 == b"\x02" * 32
    await buffer.record(0, b"", b"\x03" * 32)
    told = [event.notice.text for event in await buffer.events("notice")]
    assert sum("came out with other" in text for text in told) == 1, told
    with pytest.raises(grpc.aio.AioRpcError, match="weights_sha256 has 0 bytes"):
        await buffer.record(0, b"")


async def test_metrics_that_are_not_finite_are_kept(buffer: Buffer, tmp_path: Path) -> None:
    await buffer.open(rollout_plan(tmp_path))
    await buffer.begin()
    await buffer.record(0)
    await buffer.finish_all((await buffer.lease()).assignments)
    await buffer.batch(1)
    await buffer.report(1, grad_norm=float("inf"), loss=float("nan"))
    step = (await buffer.events("step"))[-1].step
    assert step.metrics["grad_norm"] == float("inf")
    assert step.metrics["loss"] != step.metrics["loss"]
