"""Results that the buffer does not take, and stages that it ends."""

import asyncio

from tests.integration.explorer.conftest import World
from tests.integration.explorer.peers import assignments
from trinity.api.v1 import experience_pb2 as epb
from trinity.errors import InvalidRequest

PATIENCE_SECONDS = 60.0
FAILED = epb.RunResult.STATE_FAILED


async def test_a_rejected_result_counts_as_a_failed_attempt_and_its_work_goes_back(
    world: World,
) -> None:
    world.buffer.refuse = lambda result: "it has no number" if result.sequence == 1 else ""
    (assignment,) = world.buffer.pending = assignments(1, runs=1, first_attempt=4)
    world.buffer.drains = False
    async with asyncio.timeout(PATIENCE_SECONDS), world.explorer() as stop:
        await world.buffer.until(lambda peer: bool(peer.released))
        stop.set()
    assert world.buffer.released[0] == [assignment.id]
    failed = world.buffer.results[2]
    assert (failed.attempt, failed.state, failed.run) == (5, FAILED, 0)
    assert failed.reason == "the buffer refused attempt 4: it has no number"


async def test_a_buffer_that_refuses_even_failures_fails_the_stage(world: World) -> None:
    world.buffer.refuse = lambda _: "there is no such assignment"
    (assignment,) = world.buffer.pending = assignments(1, runs=1)
    world.buffer.drains = False
    async with asyncio.timeout(PATIENCE_SECONDS), world.explorer():
        await world.finished()
    (reason,) = world.synchronizer.failures
    assert assignment.id in reason and reason.endswith("there is no such assignment")


async def test_a_result_that_is_too_large_to_store_counts_as_failed(world: World) -> None:
    world.use_reward("tests.integration.explorer.many_parts.many_parts")
    world.buffer.max_blob_bytes = 1 << 20
    world.buffer.pending = assignments(1, runs=1)
    world.buffer.drains = False
    async with asyncio.timeout(PATIENCE_SECONDS), world.explorer() as stop:
        await world.buffer.until(lambda peer: bool(peer.released))
        stop.set()
    (failed,) = world.buffer.results.values()
    assert failed.state == FAILED
    assert "a blob may have at most 1048576 bytes" in failed.reason
    assert not world.synchronizer.failures


async def test_a_call_that_is_malformed_fails_the_stage_with_one_sentence(world: World) -> None:
    world.buffer.lease_error = InvalidRequest("max_assignments must be 1 or more")
    async with asyncio.timeout(PATIENCE_SECONDS), world.explorer():
        await world.finished()
    assert world.synchronizer.failures == ["buffer: max_assignments must be 1 or more"]


async def test_a_stage_that_the_buffer_ended_fails_and_is_taken_up_when_resumed(
    world: World,
) -> None:
    world.buffer.cancel_reason = "its taskset is gone"
    async with asyncio.timeout(PATIENCE_SECONDS), world.explorer():
        await world.finished()
        assert world.synchronizer.failures == [
            "the buffer has ended the stage: its taskset is gone"
        ]
        world.buffer.cancel_reason = ""
        world.buffer.pending = assignments(1)
        await world.synchronizer.resume()
        await world.finished()
    assert world.synchronizer.finished == ["main"]
    assert len(world.buffer.complete()) == 2


async def test_an_experiment_that_a_person_cancelled_is_not_failed(world: World) -> None:
    world.engine.gate = asyncio.Event()
    world.buffer.pending = assignments(1)
    async with asyncio.timeout(PATIENCE_SECONDS), world.explorer():
        await world.buffer.until(lambda peer: peer.num_renewals >= 1)
        world.synchronizer.is_cancelled = True
        world.buffer.cancel_reason = "a person said so"
        await world.buffer.change()
        await world.status_is(lambda member: member.activity == "idle")
    assert world.synchronizer.failures == []
