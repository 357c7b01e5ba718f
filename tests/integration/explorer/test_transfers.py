"""Weights from a trainer's memory into a live engine, over gloo where there is no GPU."""

from pathlib import Path

import pytest
import pytest_asyncio
import torch

from services.explorer.engine.interface import Engine
from services.explorer.engine.weight_transfer import EngineWeightReceiver, WeightLoader
from services.explorer.types import WeightsId, WeightsVersion
from services.trainer.checkpoints.weights import weights_hash
from tests.integration.explorer.conftest import SharedEngines
from tests.integration.explorer.offering import LIMITS, dying_trainer, weights_of
from tests.integration.explorer.test_engine import PROMPT, sampling
from tests.support.offers import offering
from trinity.runtime.presence import WaitRegistry
from trinity.weights import sending, tensors
from trinity.weights.offer import OfferAddress
from trinity.workflows.generation import Generation

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def engine(engines: SharedEngines) -> Engine:
    return await engines.get()


def published(model: Path, offer: OfferAddress | None) -> WeightsVersion:
    return WeightsVersion(
        id=WeightsId(version=1, incarnation=1),
        path=model,
        manifest_sha256=b"",
        weights_blake3=weights_hash(weights_of(model)),
        offer=offer,
    )


class Transfers(EngineWeightReceiver):
    """Remembers how they ended."""

    def __init__(self, engine: Engine) -> None:
        waits = WaitRegistry(owner="explorer", on_change=lambda: None)
        super().__init__(engine=engine, waits=waits, limits=LIMITS)
        self.received: list[bool] = []

    async def receive_offered(self, weights: WeightsVersion, offer: OfferAddress) -> bool:
        self.received.append(await super().receive_offered(weights, offer))
        return self.received[-1]


async def answers(engine: Engine) -> list[Generation]:
    return [await engine.generate(PROMPT, sampling(seed, max_tokens=12)) for seed in range(2)]


async def by_files(engine: Engine, model: Path) -> list[Generation]:
    await engine.load_weights(model)
    return await answers(engine)


async def test_the_engine_answers_as_with_the_files_to_the_last_bit(
    engine: Engine, models: tuple[Path, Path]
) -> None:
    """There and back, so that nothing of the other model is left."""
    transfers = Transfers(engine)
    loader = WeightLoader(engine)
    for model, other in (models[::-1], models):
        expected = await by_files(engine, model)
        await engine.load_weights(other)
        with offering(weights_of(model), LIMITS) as offer:
            await loader.load_published(published(model, offer), transfers)
        assert await answers(engine) == expected
    assert transfers.received == [True, True]


async def test_a_trainer_that_is_killed_midway_leaves_the_engine_to_the_files(
    engine: Engine, models: tuple[Path, Path]
) -> None:
    expected = await by_files(engine, models[1])
    await engine.load_weights(models[0])
    transfers = Transfers(engine)
    with dying_trainer(models[1]) as offer:
        await WeightLoader(engine).load_published(published(models[1], offer), transfers)
    assert transfers.received == [False]
    assert await answers(engine) == expected


async def test_a_changed_bit_is_refused_and_the_files_are_loaded(
    engine: Engine, models: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def changed(*arguments: object) -> torch.Tensor:
        buffer = tensors.pack(*arguments)  # type: ignore[arg-type]
        buffer[5] ^= 4
        return buffer

    expected = await by_files(engine, models[1])
    await engine.load_weights(models[0])
    monkeypatch.setattr(sending, "pack", changed)
    transfers = Transfers(engine)
    with offering(weights_of(models[1]), LIMITS) as offer:
        await WeightLoader(engine).load_published(published(models[1], offer), transfers)
    assert transfers.received == [False]
    assert await answers(engine) == expected


async def test_an_explorer_that_comes_late_gets_them_too_and_after_that_the_files(
    engine: Engine, models: tuple[Path, Path]
) -> None:
    expected = await by_files(engine, models[1])
    transfers = Transfers(engine)
    with offering(weights_of(models[1]), LIMITS) as offer:
        for _ in range(2):
            await engine.load_weights(models[0])
            await WeightLoader(engine).load_published(published(models[1], offer), transfers)
            assert await answers(engine) == expected
    await engine.load_weights(models[0])
    await WeightLoader(engine).load_published(published(models[1], offer), transfers)
    assert transfers.received == [True, True, False]
    assert await answers(engine) == expected
