"""An engine that neither loads nor takes weights is not waited for for ever."""

import asyncio
from pathlib import Path
from types import SimpleNamespace

import pytest

from services.explorer import engines
from services.explorer.engine.interface import EngineDied, EngineOptions
from services.explorer.engine.weight_transfer import WeightLoader
from services.explorer.engines import EngineManager
from services.explorer.rollout.weight_gate import WeightGate
from services.explorer.types import WeightsRequirement, WeightsVersion
from tests.support.model_free.engine import CharacterTokenizer, HashEngine
from tests.unit.explorer.builders import build_plan, build_weights, unheard_beats
from trinity.errors import UserError
from trinity.runtime.presence import WaitRegistry
from trinity.runtime.retry import RetryPolicy


async def never(_: object) -> None:
    """Does not come back."""
    await asyncio.Event().wait()


async def test_an_engine_that_does_not_load_is_given_up_with_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def start(options: EngineOptions) -> HashEngine:
        await never(options)
        raise AssertionError

    monkeypatch.setattr(engines, "_load_tokenizer", lambda _: CharacterTokenizer())
    plan = build_plan(tmp_path, synchronizer={"sync_timeout": 0.05})
    waits = WaitRegistry(owner="explorer", on_change=lambda: None)
    with pytest.raises(UserError, match=r"did not load .* in 0.05 s \(`synchronizer.sync_timeout"):
        await EngineManager(start=start, waits=waits).ensure(plan.stages[0])
    assert waits.to_proto() == []


async def test_an_engine_that_does_not_take_weights_is_taken_for_dead() -> None:
    published = build_weights(1)

    def now() -> tuple[WeightsVersion, ...]:
        return (published,)

    async with unheard_beats() as heartbeats:
        retry_policy = RetryPolicy(heartbeats.waits, 0.05)
        gate = WeightGate(
            load=never, published=now, heartbeats=heartbeats, retry_policy=retry_policy
        )
        running = asyncio.create_task(gate.load_when_needed())
        run = asyncio.create_task(_hold(gate))
        with pytest.raises(EngineDied, match=r"did not take weights in 0.05 s"):
            await running
        run.cancel()
        await asyncio.wait([run])


class DiesLoading(HashEngine):
    """Its process ends while it takes weights: nobody answers the call."""

    def __init__(self) -> None:
        self.is_dead = False

    async def load_weights(self, directory: Path) -> None:
        self.is_dead = True
        await never(directory)

    async def check(self) -> None:
        if self.is_dead:
            raise EngineDied("the rollout engine's process died")


async def test_an_engine_that_dies_while_it_takes_weights_is_noticed_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weights = build_weights(1)
    monkeypatch.setattr(
        "services.explorer.engine.weight_transfer.manifest.verify",
        lambda *_: SimpleNamespace(roots=weights),
    )
    with pytest.raises(EngineDied, match="process died"):
        async with asyncio.timeout(5.0):
            await WeightLoader(DiesLoading()).load_published(weights)


async def _hold(gate: WeightGate) -> None:
    async with gate.hold(WeightsRequirement(version=1, incarnation=1, exact_version=True)):
        raise AssertionError
