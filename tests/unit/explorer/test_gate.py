"""The weight gate: who may begin, and when weights change."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from services.explorer.rollout import weight_gate as gate_module
from services.explorer.rollout.weight_gate import WeightGate, WeightsLost
from services.explorer.types import LostWeights, WeightsId, WeightsRequirement, WeightsVersion
from tests.unit.clock import Clock
from tests.unit.explorer.builders import build_weights, unheard_beats
from trinity.errors import ManifestError, RolloutStageFailed, Unavailable
from trinity.runtime.presence import Heartbeats
from trinity.runtime.retry import RetryPolicy
from trinity.runtime.telemetry.metrics import ENGINE_IDLE_SECONDS


@dataclass
class Loads:
    """Notes what is loaded; refuses what is broken."""

    done: list[int] = field(default_factory=list)
    broken: set[int] = field(default_factory=set)
    held_up: asyncio.Event | None = None

    async def load(self, weights: WeightsVersion) -> None:
        if self.held_up is not None:
            await self.held_up.wait()
        if weights.id.version in self.broken:
            raise ManifestError("a bit differs")
        self.done.append(weights.id.version)


@dataclass
class Trainer:
    """Hears reports once it is there, and says what is lost."""

    heard: list[int] = field(default_factory=list)
    gone: list[LostWeights] = field(default_factory=list)
    is_away: bool = False

    def lost(self) -> tuple[LostWeights, ...]:
        return tuple(self.gone)

    async def report(self, weights: WeightsVersion, reason: str) -> None:
        assert reason == "a bit differs"
        if self.is_away:
            raise Unavailable("it is away")
        self.heard.append(weights.id.version)

    def lose(self, version: int) -> None:
        lost = LostWeights(id=WeightsId(version=version, incarnation=1), damage="a bit differs")
        self.gone.append(lost)


@dataclass
class GateUnderTest:
    gate: WeightGate
    trainer: Trainer
    loads: Loads
    published: list[WeightsVersion]
    heartbeats: Heartbeats
    running: asyncio.Task[None]

    def publish(self, version: int, incarnation: int = 1) -> None:
        self.published.append(build_weights(version, incarnation))
        self.gate.on_weights_changed()


@asynccontextmanager
async def running_gate(
    *versions: int, patience_seconds: float = 60.0, keeps_requests: bool = False
) -> AsyncIterator[GateUnderTest]:
    published = [build_weights(version) for version in versions]
    async with unheard_beats() as heartbeats:
        loads, retry_policy = Loads(), RetryPolicy(heartbeats.waits, patience_seconds)
        trainer = Trainer()
        gate = WeightGate(
            load=loads.load,
            published=lambda: tuple(published),
            heartbeats=heartbeats,
            retry_policy=retry_policy,
            damage=trainer,
            keeps_requests=keeps_requests,
        )
        running = asyncio.create_task(gate.load_when_needed())
        yield GateUnderTest(gate, trainer, loads, published, heartbeats, running)
        running.cancel()
        await asyncio.wait([running])


def train(version: int, incarnation: int = 1) -> WeightsRequirement:
    return WeightsRequirement(version=version, incarnation=incarnation, exact_version=False)


def exactly(version: int, incarnation: int = 1) -> WeightsRequirement:
    return WeightsRequirement(version=version, incarnation=incarnation, exact_version=True)


async def let_others_run() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_run_waits_until_its_weights_are_published() -> None:
    async with running_gate(0) as world:
        entered = asyncio.create_task(enter(world.gate, train(2)))
        await let_others_run()
        assert not entered.done()
        (wait,) = world.heartbeats.waits.to_proto()
        assert (wait.waits_for, wait.deadline_seconds > 0) == ("trainer", True)
        assert "version 2 of incarnation 1; it keeps 0" in wait.reason
        world.publish(2)
        assert await entered == WeightsId(version=2, incarnation=1)
        assert world.heartbeats.waits.to_proto() == []


async def enter(gate: WeightGate, required: WeightsRequirement) -> WeightsId:
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


async def test_only_time_without_any_run_counts_as_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    idle: list[float] = []
    monkeypatch.setattr(ENGINE_IDLE_SECONDS, "_record", lambda seconds, _: idle.append(seconds))
    clock = Clock()
    monkeypatch.setattr("services.explorer.rollout.weight_gate.time.monotonic", clock)
    async with running_gate(0) as world:
        clock.now += 3
        async with world.gate.hold(train(0)):
            clock.now += 5
            async with world.gate.hold(train(0)):
                clock.now += 7
        clock.now += 11
        assert await enter(world.gate, train(0))
    assert idle == [3, 11]


async def test_first_runs_are_over_before_the_last_of_those_that_waited_begin() -> None:
    """In step with one another they would all end at once, and no result would leave before."""
    order: list[str] = []

    async def work(gate: WeightGate) -> None:
        async with gate.hold(train(1)):
            order.append("begun")
            for _ in range(5):
                await asyncio.sleep(0)
        order.append("over")

    async with running_gate() as under_test:
        runs = [asyncio.create_task(work(under_test.gate)) for _ in range(200)]
        await let_others_run()
        under_test.publish(1)
        await asyncio.gather(*runs)
    assert order.index("over") < 150
    assert order.count("over") == 200


async def test_evaluations_of_the_loaded_version_go_before_newer_weights() -> None:
    async with running_gate(0, 1) as world:
        order: list[str] = []

        async def note(name: str, required: WeightsRequirement) -> None:
            async with world.gate.hold(required):
                await let_others_run()
                order.append(name)

        async with world.gate.hold(train(0)):
            later = asyncio.create_task(note("newer", train(1)))
            await let_others_run()
            measured = [asyncio.create_task(note("measured", exactly(0))) for _ in range(3)]
            await let_others_run()
        await asyncio.gather(later, *measured)
        assert order == ["measured"] * 3 + ["newer"]


async def test_an_evaluation_gets_exactly_its_version() -> None:
    async with running_gate(0, 3) as world:
        assert (await enter(world.gate, train(3))).version == 3
        assert (await enter(world.gate, exactly(0))).version == 0


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


async def test_a_version_that_cannot_be_read_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gate_module, "RETRY_SECONDS", 0.01)
    async with running_gate(0) as world:
        world.loads.broken.add(0)
        waiting = asyncio.create_task(enter(world.gate, exactly(0)))
        await let_others_run()
        assert world.heartbeats.waits.to_proto()[0].waits_for == "files"
        world.loads.broken.clear()
        assert (await waiting).version == 0
        assert world.heartbeats.waits.to_proto() == []


async def test_weights_that_stand_in_for_others_are_kept_while_they_are_loaded() -> None:
    async with running_gate(5) as world:
        await enter(world.gate, train(5))
        world.loads.held_up = asyncio.Event()
        world.publish(8)
        entered = asyncio.create_task(enter(world.gate, train(7)))
        await let_others_run()
        assert not entered.done()
        assert {7, 8} <= set(world.heartbeats.member.pinned_versions)
        world.loads.held_up.set()
        assert (await entered).version == 8
        await let_others_run()
        assert list(world.heartbeats.member.pinned_versions) == [8]


async def test_weights_that_are_never_published_end_the_stage_with_a_sentence() -> None:
    async with running_gate(0, patience_seconds=0.05) as world:
        waiting = asyncio.create_task(enter(world.gate, train(3)))
        with pytest.raises(
            RolloutStageFailed, match=r"waited 0.05 s for the trainer to publish version 3 "
        ):
            await world.running
        waiting.cancel()


async def test_weights_that_never_verify_end_the_stage_with_their_directory() -> None:
    async with running_gate(0, patience_seconds=0.05) as world:
        world.loads.broken.add(0)
        waiting = asyncio.create_task(enter(world.gate, exactly(0)))
        with pytest.raises(
            RolloutStageFailed, match=r"files of version 0 in /weights/v0-1 .* a bit differs"
        ):
            await world.running
        waiting.cancel()


async def test_the_wait_for_each_version_is_a_wait_of_its_own() -> None:
    async with running_gate(0) as world:
        first = asyncio.create_task(enter(world.gate, exactly(1)))
        await let_others_run()
        (before,) = world.heartbeats.waits.to_proto()
        second = asyncio.create_task(enter(world.gate, exactly(2)))
        await let_others_run()
        world.publish(1)
        await first
        await let_others_run()
        (after,) = world.heartbeats.waits.to_proto()
        assert "version 1" in before.reason and "version 2" in after.reason
        second.cancel()


async def test_a_run_that_needs_an_exact_version_gets_it_from_a_later_life_too() -> None:
    async with running_gate(0, 3) as world:
        await enter(world.gate, train(3))
        assert (await enter(world.gate, exactly(0))).version == 0
        world.publish(0, incarnation=2)
        again = await enter(world.gate, exactly(0, incarnation=2))
        assert again == WeightsId(version=0, incarnation=2)


async def test_a_cancelled_run_does_not_hold_the_weights() -> None:
    async with running_gate(0, 1) as world:
        inside = asyncio.create_task(hold_for_ever(world.gate, train(0)))
        waiting = asyncio.create_task(enter(world.gate, train(7)))
        await let_others_run()
        inside.cancel()
        waiting.cancel()
        await asyncio.wait([inside, waiting])
        assert (await enter(world.gate, train(1))).version == 1


async def hold_for_ever(gate: WeightGate, required: WeightsRequirement) -> None:
    async with gate.hold(required):
        await asyncio.Event().wait()


async def test_refused_weights_are_reported_once_and_loaded_when_they_are_written_again() -> None:
    async with running_gate(1) as world:
        world.loads.broken = {1}
        entered = asyncio.create_task(enter(world.gate, exactly(1)))
        await let_others_run()
        world.gate.on_weights_changed()
        await let_others_run()
        assert world.trainer.heard == [1], "the second refusal is no news"
        world.loads.broken.clear()
        again = replace(world.published.pop(), path=Path("/weights/v1-1-1"), copy=1)
        world.published.append(again)
        world.gate.on_weights_changed()
        assert (await entered).version == 1


async def test_a_report_that_is_not_heard_is_repeated() -> None:
    async with running_gate(1) as world:
        world.loads.broken, world.trainer.is_away = {1}, True
        entered = asyncio.create_task(enter(world.gate, exactly(1)))
        await let_others_run()
        world.trainer.is_away = False
        world.gate.on_weights_changed()
        await let_others_run()
        assert world.trainer.heard == [1]
        entered.cancel()


async def test_a_run_that_measures_lost_weights_ends_with_the_reason() -> None:
    async with running_gate(1, 3) as world:
        await enter(world.gate, train(3))
        world.loads.broken = {1}
        entered = asyncio.create_task(enter(world.gate, exactly(1)))
        await let_others_run()
        assert not entered.done()
        world.published.pop(0)
        world.trainer.lose(1)
        world.gate.on_weights_changed()
        with pytest.raises(WeightsLost, match="version 1 are lost: a bit differs"):
            await entered
        assert (await enter(world.gate, train(3))).version == 3, "others go on"


async def test_a_run_that_trains_takes_newer_weights_in_the_place_of_lost_ones() -> None:
    async with running_gate() as world:
        required = replace(exactly(1), takes_newer_if_lost=True)
        entered = [asyncio.create_task(enter(world.gate, required)) for _ in range(3)]
        world.trainer.lose(1)
        world.gate.on_weights_changed()
        await let_others_run()
        assert not any(run.done() for run in entered)
        world.publish(2)
        assert {(await run).version for run in entered} == {2}
        assert (await enter(world.gate, required)).version == 2, "without another load"
        assert world.loads.done == [2]


async def test_weights_that_a_later_life_made_again_are_not_lost() -> None:
    async with running_gate(3) as world:
        world.trainer.lose(1)
        world.publish(1, incarnation=2)
        assert (await enter(world.gate, exactly(1))) == WeightsId(version=1, incarnation=2)


async def test_kept_requests_take_newer_weights_at_once() -> None:
    async with (
        running_gate(0, keeps_requests=True) as world,
        world.gate.hold(train(0)) as first,
    ):
        world.publish(1)
        world.publish(2)
        await let_others_run()
        assert world.loads.done == [0, 2]
        async with world.gate.hold(train(1)) as second:
            assert (first.version, second.version) == (0, 2)


async def test_an_exact_version_is_kept_although_newer_ones_come() -> None:
    async with running_gate(0, keeps_requests=True) as world:
        async with world.gate.hold(train(0)), world.gate.hold(exactly(0)):
            world.publish(1)
            await let_others_run()
            assert world.loads.done == [0]
        async with world.gate.hold(train(0)):
            await let_others_run()
            assert world.loads.done == [0, 1]


async def test_an_evaluation_of_newer_weights_lets_nothing_drain() -> None:
    async with running_gate(0, keeps_requests=True) as world, world.gate.hold(train(0)):
        evaluated = asyncio.create_task(enter(world.gate, exactly(2)))
        await let_others_run()
        for version in (1, 2, 3):
            world.publish(version)
        assert (await evaluated).version == 2


@pytest.mark.parametrize("keeps_requests", [False, True])
async def test_an_evaluation_of_older_weights_waits_for_runs_and_then_goes_first(
    keeps_requests: bool,
) -> None:
    """Calls of clients follow one another without end."""
    async with running_gate(0, 1, keeps_requests=keeps_requests) as world:
        async with world.gate.hold(train(1)):
            evaluated = asyncio.create_task(enter(world.gate, exactly(0)))
            trained = asyncio.create_task(enter(world.gate, train(1)))
            await let_others_run()
            assert not evaluated.done()
            assert not trained.done()
        assert (await evaluated).version == 0
        assert (await trained).version == 1
        assert world.loads.done == [1, 0, 1]


@pytest.mark.parametrize("keeps_requests", [False, True])
async def test_runs_go_on_when_an_evaluation_no_longer_waits(keeps_requests: bool) -> None:
    async with (
        running_gate(0, 1, keeps_requests=keeps_requests) as world,
        world.gate.hold(train(1)),
    ):
        evaluated = asyncio.create_task(enter(world.gate, exactly(0)))
        trained = asyncio.create_task(enter(world.gate, train(1)))
        await let_others_run()
        evaluated.cancel()
        assert (await trained).version == 1


async def test_damaged_weights_leave_kept_requests_with_those_before() -> None:
    async with running_gate(0, keeps_requests=True) as world:
        world.loads.broken = {1}
        async with world.gate.hold(train(0)):
            world.publish(1)
            await let_others_run()
            assert world.trainer.heard == [1]
            assert (await enter(world.gate, train(0))).version == 0
            world.publish(2)
            await let_others_run()
            assert world.loads.done == [0, 2]


async def test_weights_of_an_older_life_are_no_news_to_kept_requests() -> None:
    async with running_gate(3, keeps_requests=True) as world, world.gate.hold(train(3)):
        world.publish(2, incarnation=2)
        await let_others_run()
        assert world.loads.done == [3]
        world.publish(3, incarnation=2)
        await let_others_run()
        assert world.loads.done == [3, 3]
