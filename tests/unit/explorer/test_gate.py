"""The weight gate: who may begin, and when weights change."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from services.explorer.gate import WeightGate
from services.explorer.status import Status
from services.explorer.weights import PublishedWeights, Requirement, WeightsId
from tests.unit.explorer.builders import build_weights
from trinity.errors import ManifestError


@dataclass
class Loads:
    """Notes what is loaded; refuses what is broken."""

    done: list[int] = field(default_factory=list)
    broken: set[int] = field(default_factory=set)

    async def load(self, weights: PublishedWeights) -> None:
        if weights.id.version in self.broken:
            raise ManifestError("a bit differs")
        self.done.append(weights.id.version)


@dataclass
class GateUnderTest:
    gate: WeightGate
    loads: Loads
    published: list[PublishedWeights]
    status: Status

    def publish(self, version: int, incarnation: int = 1) -> None:
        self.published.append(build_weights(version, incarnation))
        self.gate.notice()


@asynccontextmanager
async def running_gate(*versions: int) -> AsyncIterator[GateUnderTest]:
    published = [build_weights(version) for version in versions]
    loads, status = Loads(), Status(explorer_id="me")
    gate = WeightGate(load=loads.load, published=lambda: tuple(published), status=status)
    running = asyncio.create_task(gate.run())
    yield GateUnderTest(gate, loads, published, status)
    running.cancel()
    await asyncio.wait([running])


def train(version: int, incarnation: int = 1) -> Requirement:
    return Requirement(version=version, incarnation=incarnation, exact=False)


def evaluate(version: int, incarnation: int = 1) -> Requirement:
    return Requirement(version=version, incarnation=incarnation, exact=True)


async def let_others_run() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_run_waits_until_its_weights_are_published() -> None:
    async with running_gate(0) as world:
        entered = asyncio.create_task(enter(world.gate, train(2)))
        await let_others_run()
        assert not entered.done()
        assert "version 2" in world.status.waits[0].reason
        world.publish(2)
        assert await entered == WeightsId(version=2, incarnation=1)
        assert world.status.waits == []


async def enter(gate: WeightGate, required: Requirement) -> WeightsId:
    async with gate.hold(required) as weights:
        return weights


async def test_weights_stay_while_a_run_holds_them() -> None:
    async with running_gate(0, 1) as world:
        async with world.gate.hold(train(0)):
            newer = asyncio.create_task(enter(world.gate, train(1)))
            await let_others_run()
            assert world.loads.done == [0]
        await newer
        assert world.loads.done == [0, 1]


async def test_evaluations_of_the_loaded_version_go_before_newer_weights() -> None:
    async with running_gate(0, 1) as world:
        order: list[str] = []

        async def note(name: str, required: Requirement) -> None:
            async with world.gate.hold(required):
                await let_others_run()
                order.append(name)

        async with world.gate.hold(train(0)):
            later = asyncio.create_task(note("newer", train(1)))
            await let_others_run()
            measured = [asyncio.create_task(note("measured", evaluate(0))) for _ in range(3)]
            await let_others_run()
        await asyncio.gather(later, *measured)
        assert order == ["measured"] * 3 + ["newer"]


async def test_an_evaluation_gets_exactly_its_version() -> None:
    async with running_gate(0, 3) as world:
        assert (await enter(world.gate, train(3))).version == 3
        assert (await enter(world.gate, evaluate(0))).version == 0


async def test_training_takes_newer_weights_that_are_loaded() -> None:
    async with running_gate(0, 3) as world:
        await enter(world.gate, train(3))
        assert (await enter(world.gate, train(0))).version == 3
        assert world.loads.done == [3]


async def test_weights_of_an_earlier_incarnation_do_not_serve_training() -> None:
    async with running_gate(5) as world:
        await enter(world.gate, train(5))
        waiting = asyncio.create_task(enter(world.gate, train(4, incarnation=2)))
        await let_others_run()
        assert not waiting.done()
        world.publish(4, incarnation=2)
        assert await waiting == WeightsId(version=4, incarnation=2)


async def test_files_that_do_not_match_their_manifest_are_not_used() -> None:
    async with running_gate(0, 1) as world:
        world.loads.broken.add(0)
        assert (await enter(world.gate, train(0))).version == 1


async def test_a_cancelled_run_does_not_hold_the_weights() -> None:
    async with running_gate(0, 1) as world:
        inside = asyncio.create_task(hold_for_ever(world.gate, train(0)))
        waiting = asyncio.create_task(enter(world.gate, train(7)))
        await let_others_run()
        inside.cancel()
        waiting.cancel()
        await asyncio.wait([inside, waiting])
        assert (await enter(world.gate, train(1))).version == 1


async def hold_for_ever(gate: WeightGate, required: Requirement) -> None:
    async with gate.hold(required):
        await asyncio.Event().wait()
