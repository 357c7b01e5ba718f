"""The engine's turns: in order, told to the synchronizer, and never without the lock."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from services.explorer.engine.interface import DeviceRequest, EngineDied
from services.explorer.engine.turns import EngineSharedDevice, TurnSettings
from services.explorer.engine.weight_transfer import WeightLoader
from services.explorer.rollout.weight_gate import WeightGate
from services.explorer.types import EngineTurnState, WeightsVersion
from tests.unit.explorer.builders import ArithmeticEngine, build_weights, unheard_beats
from tests.unit.explorer.test_gate import let_others_run, train
from trinity.runtime.device_lock import DeviceLock, Holder, is_wanted, read_holder
from trinity.runtime.presence import Heartbeats
from trinity.runtime.retry import RetryPolicy

TRAINER = Holder.of_this_process("trainer", "to train step 1")


class SleepyEngine(ArithmeticEngine):
    """An engine that keeps what it was told, with a lock as its process has."""

    def __init__(self) -> None:
        super().__init__()
        self.lock: DeviceLock | None = None
        self.levels: list[int] = []
        self.kept: list[bool] = []
        self.never_sleeps = False
        self.answers = asyncio.Event()
        """Calls are done at once, but answered only once this is set."""
        self.answers.set()

    async def sleep(self, level: int, *, keeps_requests: bool = False) -> None:
        self.kept.append(keeps_requests)
        if self.never_sleeps:
            await asyncio.Event().wait()
        await self.answers.wait()
        self.levels.append(level)
        if self.lock is not None:
            self.lock.release()

    async def wake_up(self, device: DeviceRequest) -> bool:
        self.lock = self.lock or DeviceLock(device.path)
        taken = self.lock.try_take(Holder.of_this_process("engine", device.reason))
        await self.answers.wait()
        return taken


@dataclass
class TurnsUnderTest:
    turns: EngineSharedDevice
    engine: SleepyEngine
    heartbeats: Heartbeats
    path: Path
    reports: list[str] = field(default_factory=list)
    is_wanted: bool = False

    async def record(self, state: EngineTurnState, process: str, reason: str) -> None:
        assert ("process" in process) == (state is EngineTurnState.HELD)
        self.reports.append(f"{state} {reason}")


@asynccontextmanager
async def turns_in(
    folder: Path, *, level: int = 1, silence_seconds: float = 60.0, keeps_runs: bool = False
) -> AsyncIterator[TurnsUnderTest]:
    async with unheard_beats() as heartbeats:
        path = folder / "gpu.lock"
        settings = TurnSettings(
            path=path, sleep_level=level, silence_seconds=silence_seconds, keeps_runs=keeps_runs
        )
        made: list[TurnsUnderTest] = []
        turns = EngineSharedDevice(
            settings,
            is_wanted=lambda: made[0].is_wanted,
            record=lambda *report: made[0].record(*report),
            waits=heartbeats.waits,
        )
        engine = SleepyEngine()
        made.append(TurnsUnderTest(turns, engine, heartbeats, path))
        turns.attach(engine, WeightLoader(engine))
        yield made[0]
        if turns.has_device:
            await turns.give_back()


async def test_an_engine_starts_in_a_turn_and_sleeps_when_it_is_there(tmp_path: Path) -> None:
    async with turns_in(tmp_path) as world:
        async with world.turns.starting():
            holder = read_holder(world.path)
            assert holder is not None and holder.reason == "to start the engine"
            await world.turns.give_back()
            assert not DeviceLock(world.path).try_take(TRAINER), "the start is not over"
        assert world.engine.levels == [1]
        assert DeviceLock(world.path).try_take(TRAINER)
        await let_others_run()
        assert world.reports == ["held to start the engine", "released to start the engine"]


async def test_the_engine_holds_the_lock_while_it_is_awake(tmp_path: Path) -> None:
    async with turns_in(tmp_path, level=2) as world:
        await world.turns.take()
        assert world.turns.has_device
        assert not DeviceLock(world.path).try_take(TRAINER)
        await world.turns.give_back()
        assert not world.turns.has_device
        assert world.engine.levels == [2]
        assert DeviceLock(world.path).try_take(TRAINER)


async def test_it_waits_for_the_trainer_and_says_so(tmp_path: Path) -> None:
    async with turns_in(tmp_path) as world:
        trainer = DeviceLock(world.path)
        assert trainer.try_take(TRAINER)
        taking = asyncio.create_task(world.turns.take())
        while not world.heartbeats.waits.to_proto():  # noqa: ASYNC110 - it tries a few times
            await asyncio.sleep(0)
        (wait,) = world.heartbeats.waits.to_proto()
        assert wait.waits_for == "trainer"
        assert "has it to train step 1" in wait.reason
        assert not world.turns.has_device
        assert is_wanted(world.path), "a trainer that keeps the device would leave"
        trainer.release()
        await taking
        assert not is_wanted(world.path)
        assert not world.heartbeats.waits.to_proto()
        await let_others_run()
        assert world.reports == ["wanted to roll out", "held to roll out"]


async def test_an_engine_that_does_not_fall_asleep_is_given_up(tmp_path: Path) -> None:
    async with turns_in(tmp_path, silence_seconds=0.05) as world:
        await world.turns.take()
        world.engine.never_sleeps = True
        with pytest.raises(EngineDied, match=r"did not fall asleep in 0\.05 s"):
            await world.turns.give_back()
        assert not DeviceLock(world.path).try_take(TRAINER), "it may still use the device"


async def cancel_before_the_answer(
    world: TurnsUnderTest, call: Coroutine[None, None, None]
) -> None:
    world.engine.answers.clear()
    calling = asyncio.create_task(call)
    await let_others_run()
    calling.cancel()
    await asyncio.wait([calling])
    world.engine.answers.set()


async def test_a_call_that_is_cancelled_leaves_no_engine_awake(tmp_path: Path) -> None:
    async with turns_in(tmp_path) as world:
        await cancel_before_the_answer(world, world.turns.take())
        assert not DeviceLock(world.path).try_take(TRAINER), "the engine's process took it"
        assert world.turns.has_device, "the engine would stay awake"
        await cancel_before_the_answer(world, world.turns.give_back())
        assert world.turns.has_device, "the engine would stay awake"
        await world.turns.give_back()
        assert not world.turns.has_device
        assert DeviceLock(world.path).try_take(TRAINER)


async def test_one_that_waits_no_longer_wishes_no_longer(tmp_path: Path) -> None:
    async with turns_in(tmp_path) as world:
        trainer = DeviceLock(world.path)
        assert trainer.try_take(TRAINER)
        starting = asyncio.create_task(world.turns.starting().__aenter__())
        await let_others_run()
        assert is_wanted(world.path)
        starting.cancel()
        await asyncio.wait([starting])
        assert not is_wanted(world.path)


@asynccontextmanager
async def gate_with(world: TurnsUnderTest, *versions: int) -> AsyncIterator[WeightGate]:
    async def load(weights: WeightsVersion) -> None:
        assert world.turns.has_device, "weights were loaded without the device"
        await world.engine.load_weights(weights.path)

    gate = WeightGate(
        load=load,
        published=lambda: tuple(build_weights(version) for version in versions),
        heartbeats=world.heartbeats,
        retry_policy=RetryPolicy(world.heartbeats.waits, 60.0),
        turns=world.turns,
    )
    running = asyncio.create_task(gate.load_when_needed())
    yield gate
    running.cancel()
    await asyncio.wait([running])


async def test_the_engine_sleeps_once_no_run_is_open_and_the_trainer_waits(tmp_path: Path) -> None:
    async with turns_in(tmp_path) as world, gate_with(world, 1) as gate:
        async with gate.hold(train(1)):
            assert world.turns.has_device
            world.is_wanted = True
            gate.on_weights_changed()
            await let_others_run()
            assert world.engine.levels == [], "a run is open"
        await let_others_run()
        assert world.engine.levels == [1]
        assert gate.loaded is None


async def test_no_run_takes_the_device_from_a_trainer_that_waits(tmp_path: Path) -> None:
    async with turns_in(tmp_path) as world, gate_with(world, 1) as gate:
        world.is_wanted = True
        gate.on_weights_changed()

        async def roll_out() -> None:
            async with gate.hold(train(1)):
                assert world.turns.has_device

        run = asyncio.create_task(roll_out())
        await let_others_run()
        assert not run.done() and not world.turns.has_device
        world.is_wanted = False
        gate.on_weights_changed()
        await run


async def test_the_engine_sleeps_with_its_runs_where_they_are_kept(tmp_path: Path) -> None:
    async with (
        turns_in(tmp_path, keeps_runs=True) as world,
        gate_with(world, 1) as gate,
        gate.hold(train(1)),
    ):
        world.is_wanted = True
        gate.on_weights_changed()
        await let_others_run()
        assert world.engine.kept == [True]
        assert gate.loaded is not None, "the run goes on with its weights"
        stopped_at = world.turns.clock.now()
        trainer = DeviceLock(world.path)
        assert trainer.try_take(TRAINER)
        async with gate.hold(train(1)):  # it begins, and waits in the engine
            assert not world.turns.has_device
            assert world.turns.clock.now() == stopped_at, "the runs' time stands still"
            trainer.release()
            world.is_wanted = False
            gate.on_weights_changed()
            await let_others_run()
            assert world.turns.has_device
            assert len(world.engine.loaded) == 1, "the weights are those of before"
            await asyncio.sleep(0.01)
            assert world.turns.clock.now() > stopped_at


async def test_an_engine_whose_runs_ended_in_its_sleep_loads_weights_again(tmp_path: Path) -> None:
    async with turns_in(tmp_path, keeps_runs=True) as world, gate_with(world, 1) as gate:
        async with gate.hold(train(1)):
            world.is_wanted = True
            gate.on_weights_changed()
            await let_others_run()
            assert not world.turns.has_device
        world.is_wanted = False
        gate.on_weights_changed()
        await let_others_run()
        async with gate.hold(train(1)):
            await let_others_run()
            assert world.turns.has_device
