"""What an explorer does while the others are away."""

import asyncio

from services.explorer.delivery.publisher import NatsBroker
from tests.integration.explorer.conftest import World
from tests.integration.explorer.peers import assignments
from tests.support.infra_fixtures import NatsUnderTest

PATIENCE_SECONDS = 60.0


async def test_results_made_while_the_broker_is_away_arrive_when_it_is_back(world: World) -> None:
    world.engine.gate = asyncio.Event()
    world.buffer.pending = assignments(2)
    async with asyncio.timeout(PATIENCE_SECONDS), world.explorer():
        await world.buffer.until(lambda peer: peer.num_renewals >= 1)
        world.broker.kill()
        world.engine.gate.set()
        await world.status_is(lambda member: member.version == 0)
        await world.broker.start()
        await world.finished()
    assert len(world.buffer.complete()) == 4


async def test_a_broker_that_is_back_is_told_of_so_that_what_it_lost_is_sent_again(
    nats_server: NatsUnderTest,
) -> None:
    back = asyncio.Event()
    async with asyncio.timeout(PATIENCE_SECONDS), NatsBroker(nats_server.explorer_url) as broker:
        broker.on_return(back.set)
        await broker.connect()
        assert not back.is_set()
        nats_server.kill()
        await nats_server.start()
        await back.wait()


async def test_an_explorer_waits_for_commits_before_it_finishes(world: World) -> None:
    world.buffer.is_mute = True
    world.buffer.pending = assignments(2)
    async with asyncio.timeout(PATIENCE_SECONDS), world.explorer():
        await world.status_is(
            lambda member: any("results to be committed" in wait.reason for wait in member.waits)
        )
        assert not world.synchronizer.finished
        world.buffer.is_mute = False
        await world.buffer.change()
        await world.finished()


async def test_a_wait_for_weights_is_visible_with_its_reason(world: World) -> None:
    world.buffer.pending = assignments(1, required_version=3)
    async with asyncio.timeout(PATIENCE_SECONDS), world.explorer():
        await world.status_is(
            lambda member: any(
                wait.waits_for == "trainer" and "version 3" in wait.reason for wait in member.waits
            )
        )
        await world.publish(3)
        await world.finished()
    assert len(world.buffer.complete()) == 2
