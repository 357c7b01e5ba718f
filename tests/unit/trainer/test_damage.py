"""Reported weights: the trainer looks for itself, and writes again what is damaged."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from services.trainer.clients import damaged_versions
from services.trainer.types import WeightsOnDisk
from tests.support.model_free.damage import FAULTS, flip_a_bit, lead_elsewhere
from tests.support.model_free.model import write_model
from trinity.api.v1 import synchronizer_pb2
from trinity.weights.ledger import LedgerKey, WeightsLedger
from trinity.weights.manifest import verify

if TYPE_CHECKING:  # they import torch
    import torch

    from services.trainer.checkpoints.damage import ReportVerifier
    from services.trainer.checkpoints.weights import WeightsStore

Tensors = dict[str, "torch.Tensor"]


@pytest.fixture
def store(tmp_path: Path) -> "WeightsStore":
    import torch

    from services.trainer.checkpoints.weights import ModelFiles, WeightsStore

    files = ModelFiles(copy=tmp_path / "files", dtype="float32", chat_template=None)
    files.copy_from(write_model(tmp_path / "model"))
    ledger = WeightsLedger(folder=tmp_path, stage="rft", key=LedgerKey.create(tmp_path))
    made = WeightsStore(
        root=tmp_path / "weights", stage="rft", files=files, dtype=torch.float32, ledger=ledger
    )
    made.load_announced([], incarnation=1)
    return made


def tensors(value: float = 1.0) -> Tensors:
    import torch

    return {"digest": torch.full((4,), value)}


def written_again(
    store: "WeightsStore", old: WeightsOnDisk, held: Tensors | None
) -> WeightsOnDisk | None:
    """As the publisher does, with what the learner holds."""
    from services.trainer.checkpoints.weights import ALONE, next_copy

    if held is None:
        return store.write_again(old, None)
    name = next_copy(old)
    store.create_directory(name)
    part = store.new_part(name, ALONE)
    part.write_tensors(held.items())
    return store.write_again(old, part.finish_files())


def intact(weights: WeightsOnDisk) -> bool:
    return verify(weights.path, weights.manifest_sha256).step == weights.version


def announced(folder: Path) -> list[str]:
    ledger = WeightsLedger(folder=folder, stage="rft", key=LedgerKey.read(folder))
    return [entry.directory for entry in ledger.read()]


@pytest.mark.parametrize("fault", FAULTS)
def test_whatever_is_damaged_is_written_again_beside_it(
    store: "WeightsStore", tmp_path: Path, fault: str
) -> None:
    old = store.write(tensors(), version=2, incarnation=1)
    FAULTS[fault](old.path)
    again = written_again(store, old, tensors())
    assert again is not None and intact(again)
    assert (again.path.name, again.copy) == ("v2-1-1", 1)
    assert (again.weights_blake3, again.parent) == (old.weights_blake3, old.parent)
    store.discard(old)
    assert not os.path.lexists(old.path)
    assert intact(again), "what a link led to was not touched, and neither was the copy"
    assert announced(tmp_path) == ["v2-1-1"]
    twice = written_again(store, again, tensors())
    assert twice is not None and twice.path.name == "v2-1-2"


def test_other_weights_do_not_take_the_place_of_damaged_ones(store: "WeightsStore") -> None:
    old = store.write(tensors(), version=2, incarnation=1)
    assert written_again(store, old, tensors(2.0)) is None
    assert written_again(store, old, None) is None
    assert [path.name for path in old.path.parent.iterdir()] == [old.path.name], "nothing is left"


def test_an_intact_copy_of_another_life_is_used_and_a_damaged_one_is_not(
    store: "WeightsStore",
) -> None:
    first = store.write(tensors(), version=2, incarnation=1)
    second = store.write(tensors(), version=2, incarnation=2)
    flip_a_bit(second.path)
    again = written_again(store, second, None)
    assert again is not None and intact(again)
    flip_a_bit(first.path)  # the copy links the same files
    assert written_again(store, again, None) is None


def test_a_damaged_file_that_all_versions_share_is_not_shared_any_more(
    store: "WeightsStore", tmp_path: Path
) -> None:
    old = store.write(tensors(), version=2, incarnation=1)
    before = (old.path / "config.json").read_bytes()
    (old.path / "config.json").write_text("{}")
    assert (tmp_path / "files/config.json").read_text() == "{}", "they are one file"
    assert (store.write(tensors(), version=3, incarnation=1).path / "config.json").read_bytes() == (
        before
    )
    (tmp_path / "files/config.json").unlink()
    intact(store.write(tensors(), version=4, incarnation=1))


def test_the_next_life_removes_a_link_and_not_what_it_leads_to(
    store: "WeightsStore", tmp_path: Path
) -> None:
    kept = store.write(tensors(), version=2, incarnation=1)
    gone = store.write(tensors(), version=1, incarnation=1)
    lead_elsewhere(gone.path)
    elsewhere = gone.path.resolve()
    store.load_announced([kept], incarnation=2)
    assert not os.path.lexists(gone.path) and (elsewhere / "model.safetensors").exists()
    assert announced(tmp_path) == ["v2-1"]


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The directories that were hashed."""
    from services.trainer.checkpoints import damage

    paths: list[Path] = []

    def noting(directory: Path, manifest_sha256: bytes) -> object:
        paths.append(directory)
        return verify(directory, manifest_sha256)

    monkeypatch.setattr(damage, "verify", noting)
    return paths


class Clock:
    """Stands still until it is set."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def verifier_with(clock: Clock) -> "ReportVerifier":
    from services.trainer.checkpoints.damage import ReportVerifier

    return ReportVerifier(clock=clock)


def test_an_explorer_that_lies_costs_one_look(store: "WeightsStore", hashed: list[Path]) -> None:
    weights, clock = store.write(tensors(), version=2, incarnation=1), Clock()
    verifier = verifier_with(clock)
    for second in range(500):
        clock.now = float(second)
        assert verifier.find_damage(weights) == ""
    assert len(hashed) == 1


def test_files_that_keep_changing_are_not_hashed_all_the_time(
    store: "WeightsStore", hashed: list[Path]
) -> None:
    weights, clock = store.write(tensors(), version=2, incarnation=1), Clock()
    verifier = verifier_with(clock)
    for second in range(50):
        clock.now = float(second)
        os.utime(weights.path / "model.safetensors", (second, second))
        verifier.find_damage(weights)
    assert len(hashed) == 10


def test_damage_after_a_lie_is_found(store: "WeightsStore") -> None:
    """By its signature within seconds; without a change of that after ten minutes."""
    weights, clock = store.write(tensors(), version=2, incarnation=1), Clock()
    verifier = verifier_with(clock)
    assert verifier.find_damage(weights) == ""
    clock.now = 6.0
    flip_a_bit(weights.path)
    assert "has changed" in verifier.find_damage(weights)


class Reports:
    """The same report again and again, as streams are opened anew."""

    def __init__(self, weights: WeightsOnDisk) -> None:
        self._weights = weights

    def follow_reports(self) -> Iterator[list[WeightsOnDisk]]:
        while True:
            yield [self._weights]


@pytest.fixture
def wait_for_damage() -> Callable[[WeightsOnDisk], int]:
    import threading

    from services.trainer.checkpoints.damage import DamageWatch

    def wait(weights: WeightsOnDisk) -> int:
        found = threading.Event()
        watch = DamageWatch(Reports(weights), on_damage=found.set)
        watch.start()
        try:
            assert found.wait(30)
        finally:
            watch.stop()
        assert watch.has_damage
        taken = watch.take_damaged()
        assert not watch.has_damage
        return len(taken)

    return wait


def test_damaged_weights_are_handed_over_once(
    store: "WeightsStore", wait_for_damage: Callable[[WeightsOnDisk], int]
) -> None:
    weights = store.write(tensors(), version=2, incarnation=1)
    flip_a_bit(weights.path)
    assert wait_for_damage(weights) == 1


def announcement(version: int, incarnation: int, damage: str = "") -> synchronizer_pb2.Version:
    return synchronizer_pb2.Version(
        stage="rft", version=version, incarnation=incarnation, damage=damage
    )


def test_a_version_that_a_later_incarnation_has_made_again_is_not_damaged() -> None:
    """Else the wait for evaluations of the final version would make it again and again."""
    before = [announcement(7, 1, "torn"), announcement(8, 1, "torn")]
    assert [each.version for each in damaged_versions(before)] == [7, 8]
    after = [*before, announcement(8, 2)]
    assert [(each.version, each.incarnation) for each in damaged_versions(after)] == [(7, 1)]
    again = [*before, announcement(8, 2, "torn")]
    assert [(each.version, each.incarnation) for each in damaged_versions(again)] == [
        *((7, 1), (8, 2))
    ]
