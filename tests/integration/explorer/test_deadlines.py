"""No wait is endless: each ends the stage with its own sentence."""

import asyncio

import pytest

from tests.integration.explorer.conftest import World
from tests.integration.explorer.peers import assignments
from tests.support.model_free.experiment import giving_up_after
from trinity.errors import Unavailable

PATIENCE_SECONDS = 60.0


@pytest.fixture
def hasty(world: World) -> World:
    """A plan that bears nothing for long."""
    world.plan_with(
        synchronizer={"sync_timeout": 0.5},
        explorer={"max_timeout": 0.1, "max_retry_times": 0},
    )
    world.synchronizer.plan = giving_up_after(world.synchronizer.plan, 0.5)
    return world


async def reason_of_failure(world: World) -> str:
    async with asyncio.timeout(PATIENCE_SECONDS), world.explorer():
        await world.finished()
    (reason,) = world.synchronizer.failures
    return reason


@pytest.mark.parametrize("error", [Unavailable("no database"), RuntimeError("a mistake")])
async def test_a_buffer_that_does_not_answer(hasty: World, error: Exception) -> None:
    hasty.buffer.lease_error = error
    reason = await reason_of_failure(hasty)
    assert reason.startswith("waited 0.5 s for the buffer to lease work: buffer: ")


async def test_a_buffer_without_work_whose_reason_never_changes(hasty: World) -> None:
    hasty.buffer.waits_for = "the trainer has not published weights yet"
    reason = await reason_of_failure(hasty)
    assert reason == (
        "waited 0.5 s for the buffer to have work: the trainer has not published weights yet"
    )


async def test_tasksets_that_never_come(hasty: World) -> None:
    hasty.buffer.reading = 1_000_000
    reason = await reason_of_failure(hasty)
    assert reason == "waited 0.5 s for the buffer to open the stage: taskset sums is awaited"


async def test_weights_that_never_come(hasty: World) -> None:
    hasty.buffer.pending = assignments(1, required_version=3)
    reason = await reason_of_failure(hasty)
    assert reason.startswith("waited 0.5 s for the trainer to publish version 3 of incarnation 1")


async def test_weights_that_never_verify(hasty: World) -> None:
    directory = hasty.folder / "weights" / "v0-1"
    (directory / "model.safetensors").write_bytes(b"other")
    hasty.buffer.pending = assignments(1)
    reason = await reason_of_failure(hasty)
    assert reason.startswith(f"waited 0.5 s for the files of version 0 in {directory}")


async def test_reports_that_never_come(hasty: World) -> None:
    hasty.buffer.is_mute = True
    hasty.buffer.pending = assignments(1)
    reason = await reason_of_failure(hasty)
    assert reason == (
        "waited 0.5 s for the buffer to have results committed: it does not report on them"
    )


async def test_a_broker_that_is_away(hasty: World) -> None:
    hasty.broker.kill()
    hasty.buffer.pending = assignments(1)
    reason = await reason_of_failure(hasty)
    assert reason.startswith("waited 0.5 s for the broker to have results committed: ")


async def test_tasksets_that_come_in_time_are_waited_for_visibly(world: World) -> None:
    world.buffer.reading = 3
    world.buffer.pending = assignments(1)
    async with asyncio.timeout(PATIENCE_SECONDS), world.explorer():
        await world.status_is(
            lambda member: any("taskset sums is awaited" in wait.reason for wait in member.waits)
        )
        await world.finished()
    assert world.synchronizer.finished == ["main"]
