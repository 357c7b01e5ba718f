"""A trainer stores versions in half precision as differences; what needs whole ones gets them."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from services.trainer.checkpoints.best import BestVersion
from services.trainer.types import WeightsOnDisk
from tests.support.model_free.damage import flip_a_bit
from tests.support.model_free.model import write_model
from trinity.weights.manifest import verify
from trinity.weights.stored import best_manifest, is_delta, newest_model
from trinity.weights.whole import PREFIX, whole_model

if TYPE_CHECKING:  # they import torch
    import torch

    from services.trainer.checkpoints.weights import WeightsStore

Tensors = dict[str, "torch.Tensor"]
NUM_VERSIONS = 10


def tensors_of(step: int) -> Tensors:
    import torch

    draws = torch.Generator().manual_seed(1)
    made = {f"layer.{n}": torch.randn(32, 64, generator=draws).bfloat16() for n in range(4)}
    made["layer.2"][step, :3] += 1.0
    return made


def store_in(folder: Path, dtype: str = "bfloat16") -> "WeightsStore":
    import torch

    from services.trainer.checkpoints.weights import ModelFiles, WeightsStore

    files = ModelFiles(copy=folder / "files", dtype=dtype, chat_template=None)
    files.copy_from(write_model(folder / "model"))
    root = folder / "stages" / "rft" / "weights"
    return WeightsStore(root=root, stage="rft", files=files, dtype=getattr(torch, dtype))


@pytest.fixture
def store(tmp_path: Path) -> "WeightsStore":
    made = store_in(tmp_path)
    made.load_announced([], incarnation=1)
    return made


def published(store: "WeightsStore", step: int, num_ranks: int = 1) -> WeightsOnDisk:
    """As the publisher does it, with so many ranks one after the other."""
    from services.trainer.checkpoints.weights import WeightsName
    from services.trainer.collectives import Ranks

    name = WeightsName(step, 1)
    store.create_directory(name)
    base = store.next_base(1)
    parts = [store.new_part(name, Ranks(rank, num_ranks)) for rank in range(num_ranks)]
    for part in parts:
        part.write_tensors(tensors_of(step).items())
    path = base.path if base is not None else None
    files = [file for part in parts for file in part.finish_files(path)]
    return store.seal_files(name, tuple(files), b"", path)


def loaded(directory: Path) -> Tensors:
    from safetensors.torch import load_file

    files = sorted(directory.glob("*.safetensors"))
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


def assert_holds(directory: Path, step: int) -> None:
    import torch

    found = loaded(directory)
    assert found.keys() == tensors_of(step).keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors_of(step).items())


@pytest.mark.parametrize("num_ranks", [1, 3])
def test_one_of_eight_versions_is_whole_and_each_is_what_was_trained(
    store: "WeightsStore", num_ranks: int
) -> None:
    for step in range(NUM_VERSIONS):
        weights = published(store, step, num_ranks)
        assert verify(weights.path, weights.manifest_sha256).step == step
        assert weights.base_version == (None if step in (0, 8) else 0 if step < 8 else 8)
        assert is_delta(weights.path) == (step not in (0, 8))
        with whole_model(weights.path, weights) as whole:
            assert_holds(whole, step)


def test_a_base_stays_as_long_as_a_version_that_names_it(store: "WeightsStore") -> None:
    for step in range(NUM_VERSIONS):
        published(store, step)
        kept = [weights.version for weights in (store.prune(set()), store.published)[1]]
        newest = [version for version in (step - 1, step) if version >= 0]
        assert kept == sorted({*newest, *([0] if step <= 8 else []), *([8] if step == 9 else [])})
    assert [weights.version for weights in store.published] == [8, 9]


def test_scratch_of_other_hosts_goes_with_its_version(store: "WeightsStore") -> None:
    """An explorer of several hosts was killed while it applied version 1, and did not come back."""
    published(store, 0)
    folder = published(store, 1).path.parent
    left = folder / f"{PREFIX}v1-1@gone-x"
    left.mkdir()
    published(store, 2)
    store.prune(set())
    assert left.is_dir(), "it may be used as long as its version may"
    published(store, 3)
    store.prune(set())
    assert not left.exists()
    kept, lost = (folder / f"{PREFIX}v{number}-1@gone-x" for number in (3, 9))
    for path in (kept, lost):
        path.mkdir()
    store.load_announced(store.published, incarnation=2)
    assert kept.is_dir() and not lost.exists()


@pytest.fixture
def delta(store: "WeightsStore") -> Iterator[WeightsOnDisk]:
    published(store, 0)
    yield published(store, 1)


def test_a_delta_is_made_whole_for_all_that_takes_files(
    store: "WeightsStore", delta: WeightsOnDisk, tmp_path: Path
) -> None:
    """Later stages, later lives of the trainer, the best version, and people."""
    stage = tmp_path / "stages" / "rft"
    newest = newest_model(tmp_path, "rft")
    assert newest is not None and newest.version == 0, "a delta is no model"
    best = BestVersion(stage / "best")
    best.copy_first([1], store.published)
    assert_holds(stage / "best", 1)
    assert (found := best_manifest(stage)) is not None and found.roots.weights_blake3
    later = store.republish(1, incarnation=2)
    for whole in (store.make_whole(delta), later):
        assert whole is not None and whole.base_version is None
        assert whole.weights_blake3 == delta.weights_blake3
        assert verify(whole.path, whole.manifest_sha256).roots.weights_blake3
        assert_holds(whole.path, 1)


def test_a_damaged_base_is_found_behind_its_delta(
    store: "WeightsStore", delta: WeightsOnDisk, tmp_path: Path
) -> None:
    from services.trainer.checkpoints.damage import ReportVerifier

    base = store.published[0]
    assert ReportVerifier().find_damage(delta) == ""
    flip_a_bit(base.path)
    assert "layer.3" in ReportVerifier().find_damage(delta)
    assert store.make_whole(delta) is None and store.republish(1, incarnation=2) is None
    best = BestVersion(tmp_path / "best")
    best.copy_first([1], store.published)
    assert not (tmp_path / "best").exists()


def test_single_precision_and_other_lives_have_no_base(
    tmp_path: Path, store: "WeightsStore"
) -> None:
    published(store, 0)
    assert store.next_base(1) is not None
    assert store.next_base(2) is None
    single = store_in(tmp_path / "single", "float32")
    single.load_announced([], incarnation=1)
    published(single, 0)
    assert single.next_base(1) is None
