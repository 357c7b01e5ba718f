"""A stream that is full takes nothing: results stay where they are, and the wait has a name."""

import asyncio

import nats
from nats.js.api import DiscardPolicy, StreamConfig

from tests.integration.explorer.conftest import World
from tests.integration.explorer.peers import assignments

PATIENCE_SECONDS = 60.0
FULL_BYTES, USUAL_BYTES = 1, 64 << 20


async def make_room(world: World, max_bytes: int) -> None:
    client = await nats.connect(world.broker.url)
    config = StreamConfig(
        name="runs", subjects=["trinity.runs.>"], max_bytes=max_bytes, discard=DiscardPolicy.NEW
    )
    await client.jetstream().update_stream(config)
    await client.close()


async def test_results_wait_for_room_in_the_stream_and_none_is_dropped(world: World) -> None:
    world.engine.gate = asyncio.Event()
    world.buffer.pending = assignments(2)
    async with asyncio.timeout(PATIENCE_SECONDS), world.explorer():
        await world.buffer.until(lambda peer: peer.num_renewals >= 1)
        await make_room(world, FULL_BYTES)
        world.engine.gate.set()
        await world.status_is(
            lambda member: any(
                wait.waits_for == "broker"
                and "4 results to be committed" in wait.reason
                and "maximum bytes exceeded" in wait.reason
                for wait in member.waits
            )
        )
        assert not world.buffer.complete()
        await make_room(world, USUAL_BYTES)
        await world.finished()
    assert len(world.buffer.complete()) == 4
