"""Weights that are offered from memory, as the explorer takes them: or the files, and says so."""

import logging
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from services.explorer.engine.interface import EnginePool
from services.explorer.engine.weight_transfer import EngineWeightReceiver, WeightLoader
from services.explorer.types import WeightsId, WeightsVersion
from tests.support.offers import offering
from tests.unit.explorer.builders import ArithmeticEngine, build_weights
from tests.unit.weights.test_delta import write_delta
from trinity.errors import ManifestError
from trinity.runtime.presence import WaitRegistry
from trinity.weights.manifest import ManifestHead, seal
from trinity.weights.offer import OfferAddress, TransferTimeouts

LIMITS = TransferTimeouts(
    turn_seconds=60.0, join_seconds=0.5, stall_seconds=60.0, whole_seconds=60.0
)
WEIGHTS = {"w": torch.zeros(3)}
"""Nobody joins to get them: the engines are stand-ins."""
NOBODY = OfferAddress(address="127.0.0.1:9", group="weights")


def published(offer: OfferAddress | None) -> WeightsVersion:
    return replace(build_weights(1), manifest_sha256=b"", offer=offer)


async def load(engine: ArithmeticEngine, weights: WeightsVersion) -> None:
    await WeightLoader(engine).load_published(weights, transfers_to(engine))


def transfers_to(engine: ArithmeticEngine | EnginePool) -> EngineWeightReceiver:
    waits = WaitRegistry(owner="explorer", on_change=lambda: None)
    return EngineWeightReceiver(engine=engine, waits=waits, limits=LIMITS)


async def test_what_is_offered_is_received_and_no_file_is_read() -> None:
    engine = ArithmeticEngine()
    with offering(WEIGHTS, LIMITS) as offer:
        await load(engine, published(offer))
    [slot] = engine.slots
    assert slot.weights_sha256 == build_weights(1).weights_sha256.hex()
    assert not engine.loaded


async def test_what_the_engine_refuses_is_loaded_from_files(
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = ArithmeticEngine(refusal="hash differs")
    with caplog.at_level(logging.WARNING), offering(WEIGHTS, LIMITS) as offer:
        await load(engine, published(offer))
    assert engine.loaded == [Path("/weights/v1-1")]
    [said] = [one for one in caplog.records if "taken from files" in one.message]
    assert said.__dict__["reason"] == "hash differs"


async def test_why_files_have_to_do_shows_until_they_are_in() -> None:
    engine = ArithmeticEngine()
    waits = WaitRegistry(owner="explorer", on_change=lambda: None)
    transfers = EngineWeightReceiver(engine=engine, waits=waits, limits=LIMITS)
    assert not await transfers.receive_offered(published(NOBODY), NOBODY)
    [wait] = waits.to_proto()
    assert wait.waits_for == "files"
    assert "of version 1" in wait.reason
    assert "weights are no longer offered at 127.0.0.1:9" in wait.reason
    transfers.clear_wait()
    assert not waits.to_proto()


async def test_a_trainer_that_is_gone_leaves_the_files() -> None:
    engine = ArithmeticEngine()
    await load(engine, published(NOBODY))
    assert engine.loaded == [Path("/weights/v1-1")]
    assert not engine.slots


async def test_weights_without_an_offer_are_files() -> None:
    engine = ArithmeticEngine()
    await load(engine, published(None))
    assert engine.loaded == [Path("/weights/v1-1")]


async def test_what_is_there_already_is_not_asked_for() -> None:
    engine = ArithmeticEngine()
    loader = WeightLoader(engine, loaded=published(None))
    await loader.load_published(published(NOBODY), transfers_to(engine))
    assert not engine.loaded
    assert not engine.slots


async def test_engines_of_one_explorer_sit_side_by_side_and_agree() -> None:
    engines = [ArithmeticEngine(), ArithmeticEngine(refusal="late"), ArithmeticEngine()]
    pool = EnginePool(engines)
    with offering(WEIGHTS, LIMITS) as offer:
        assert not await transfers_to(pool).receive_offered(published(offer), offer)
    [[first], [second], [third]] = [engine.slots for engine in engines]
    assert [first.first_rank, second.first_rank, third.first_rank] == [1, 2, 3]
    assert {slot.num_ranks for slot in (first, second, third)} == {4}


class ReadingEngine(ArithmeticEngine):
    """Keeps the bytes that it is given."""

    content = b""

    async def load_weights(self, directory: Path) -> None:
        await super().load_weights(directory)
        self.content = (directory / "model.safetensors").read_bytes()


async def test_a_delta_is_loaded_whole_by_an_explorer_that_has_loaded_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """So after a restart; without its base the engine keeps what it has."""
    directory, roots = write_delta(tmp_path)
    head = ManifestHead(
        kind="weights",
        stage="rft",
        step=2,
        incarnation=1,
        weights_blake3=roots.weights_blake3.hex(),
    )
    sealed = seal(directory, head)
    weights = WeightsVersion(
        id=WeightsId(version=2, incarnation=1),
        path=directory,
        manifest_sha256=sealed,
        weights_blake3=roots.weights_blake3,
    )
    engine = ReadingEngine()
    await load(engine, weights)
    assert engine.content == (tmp_path / "expected").read_bytes()
    assert not engine.loaded[0].exists(), "it is in the engine now"
    (tmp_path / "v1-1" / "model.safetensors").unlink()
    with pytest.raises(ManifestError, match="v1-1"), caplog.at_level(logging.WARNING):
        await load(engine, weights)
    assert len(engine.loaded) == 1
    assert "a delta is not applied" in caplog.text
