"""From a lease to a committed result, over real sockets and a real broker."""

import asyncio

from tests.integration.explorer.conftest import World
from tests.integration.explorer.peers import assignments
from trinity.codec import experience_from_proto


async def finished(world: World) -> None:
    async with world.synchronizer.changed:
        await world.synchronizer.changed.wait_for(lambda: bool(world.synchronizer.finished))


async def test_every_run_of_a_stage_is_committed_and_the_role_finished(world: World) -> None:
    world.buffer.pending = assignments(4)
    async with asyncio.timeout(20), world.explorer():
        await finished(world)
    assert len(world.buffer.results) == 8
    assert world.buffer.num_received == 8
    experience = experience_from_proto(world.buffer.results[1].experiences[0])
    assert experience.reward == 0.0
    assert experience.version_spans[0].version == 0
    assert experience.sampling is not None and experience.sampling.seed > 0
