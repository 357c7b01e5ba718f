"""Several engines of one explorer."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from services.explorer import engines
from services.explorer.control.stage import _num_runners
from services.explorer.engine.interface import EngineDied, EngineOptions, EnginePool
from services.explorer.engines import EngineManager
from tests.support.model_free.engine import CharacterTokenizer
from tests.unit.explorer.builders import ArithmeticEngine, build_plan
from trinity.errors import UserError
from trinity.runtime.presence import WaitRegistry
from trinity.types import SamplingParams

SAMPLING = SamplingParams(max_tokens=3)


@dataclass
class Started:
    """Engines in the order in which they were started; `fails` is the number of one that cannot."""

    fails: int = -1
    engines: list["ClosableEngine"] = field(default_factory=list)

    async def start(self, options: EngineOptions) -> "ClosableEngine":
        if options.number == self.fails:
            raise RuntimeError("out of memory")
        assert options.number == len(self.engines)
        self.engines.append(ClosableEngine())
        return self.engines[-1]


@dataclass
class ClosableEngine(ArithmeticEngine):
    """Tells whether it was closed."""

    is_closed: bool = False

    async def close(self) -> None:
        self.is_closed = True


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_call_goes_to_the_engine_with_the_fewest() -> None:
    gates = [asyncio.Event() for _ in range(3)]
    parts = [ArithmeticEngine(gate=gate) for gate in gates]
    pool = EnginePool(parts)
    async with asyncio.TaskGroup() as calls:
        for seed in range(6):
            calls.create_task(pool.generate([1], SamplingParams(max_tokens=3, seed=seed)))
        await settle()
        assert [part.num_active for part in parts] == [2, 2, 2]
        gates[1].set()
        await settle()
        assert [part.num_active for part in parts] == [2, 0, 2]
        gates[1].clear()
        for seed in range(6, 9):
            calls.create_task(pool.generate([1], SamplingParams(max_tokens=3, seed=seed)))
        await settle()
        assert sorted(part.num_active for part in parts) == [2, 2, 3]
        for gate in gates:
            gate.set()


async def test_a_call_that_is_cancelled_counts_no_more() -> None:
    parts = [ArithmeticEngine(gate=asyncio.Event()) for _ in range(2)]
    pool = EnginePool(parts)
    first = asyncio.create_task(pool.generate([1], SAMPLING))
    await settle()
    first.cancel()
    await asyncio.wait([first])
    assert parts[0].num_aborted == 1
    second = [asyncio.create_task(pool.generate([1], SAMPLING)) for _ in range(2)]
    await settle()
    assert [part.num_active for part in parts] == [1, 1]
    for one in second:
        one.cancel()
    await asyncio.wait(second)


async def test_all_engines_get_the_weights_and_a_dead_one_is_noticed() -> None:
    parts = [ArithmeticEngine() for _ in range(2)]
    pool = EnginePool(parts)
    await pool.load_weights(Path("/weights/v1"))
    assert [part.loaded for part in parts] == [[Path("/weights/v1")]] * 2
    await pool.check()
    parts[1].died = EngineDied("the rollout engine's process died")
    with pytest.raises(EngineDied):
        await pool.check()


async def test_an_explorer_starts_as_many_engines_as_its_plan_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "_load_tokenizer", lambda _: CharacterTokenizer())
    [stage] = build_plan(tmp_path, explorer={"rollout_model": {"engine_num": 3}}).stages
    assert _num_runners(stage) == 3 * stage.config.explorer.runner_per_model
    waits = WaitRegistry(owner="explorer", on_change=lambda: None)
    started = Started()
    running = EngineManager(start=started.start, waits=waits)
    engine = (await running.ensure(stage)).policy.engine
    for seed in range(6):
        await engine.generate([1], SamplingParams(max_tokens=3, seed=seed))
    assert [len(one.seeds) for one in started.engines] == [2, 2, 2]
    await running.close_engines()
    assert all(one.is_closed for one in started.engines)


async def test_engines_that_started_are_ended_when_another_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "_load_tokenizer", lambda _: CharacterTokenizer())
    [stage] = build_plan(tmp_path, explorer={"rollout_model": {"engine_num": 2}}).stages
    started = Started(fails=1)
    waits = WaitRegistry(owner="explorer", on_change=lambda: None)
    with pytest.raises(UserError, match="out of memory"):
        await EngineManager(start=started.start, waits=waits).ensure(stage)
    assert [one.is_closed for one in started.engines] == [True]
