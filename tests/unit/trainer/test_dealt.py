"""Weights that several ranks write are those that one writes: same root, same tensors."""

import errno
import json
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from services.trainer.types import WeightsOnDisk
from tests.support.model_free.model import write_model
from trinity.errors import ManifestError
from trinity.weights.identity import same_weights
from trinity.weights.manifest import MANIFEST_NAME, verify

if TYPE_CHECKING:  # they import torch
    import torch

    from services.trainer.checkpoints.dealt import WeightsFile
    from services.trainer.checkpoints.weights import WeightsStore

Tensors = dict[str, "torch.Tensor"]
SIZES = {"embed": 4096, "norm": 64, **{f"layers.{n}.weight": 1024 for n in range(8)}, "head": 4096}
LARGEST = 4 * max(SIZES.values())
BUCKET = 8192
"""Of two layers."""


def tensors_of() -> Tensors:
    import torch

    draws = torch.Generator().manual_seed(1)
    return {name: torch.randn(size // 8, 8, generator=draws) for name, size in SIZES.items()}


@dataclass(slots=True)
class Gathered:
    """Whole tensors that come one by one; counts the bytes that are held at a time."""

    peak: int = 0
    _alive: "weakref.WeakSet[torch.Tensor]" = field(default_factory=weakref.WeakSet)

    def __iter__(self) -> Iterator[tuple[str, "torch.Tensor"]]:
        for name, source in tensors_of().items():
            tensor = source.clone()
            self._alive.add(tensor)
            self.peak = max(self.peak, sum(held.nbytes for held in self._alive))
            yield name, tensor
            del tensor


@pytest.fixture
def store(tmp_path: Path) -> "WeightsStore":
    import torch

    from services.trainer.checkpoints.weights import ModelFiles, WeightsStore

    files = ModelFiles(copy=tmp_path / "files", dtype="float32", chat_template=None)
    files.copy_from(write_model(tmp_path / "model"))
    made = WeightsStore(root=tmp_path / "weights", stage="rft", files=files, dtype=torch.float32)
    made.load_announced([], incarnation=1)
    return made


def written_by(store: "WeightsStore", num_ranks: int) -> tuple[WeightsOnDisk, list[int]]:
    """What so many ranks write one after the other, and the most bytes that each one held."""
    from services.trainer.checkpoints.weights import WeightsName
    from services.trainer.collectives import Ranks

    name = WeightsName(version=num_ranks, incarnation=1)
    store.create_directory(name)
    files: list[WeightsFile] = []
    peaks = []
    for rank in range(num_ranks):
        gathered = Gathered()
        part = store.new_part(name, Ranks(rank, num_ranks))
        part.write_tensors(gathered)
        files += part.finish_files()
        peaks.append(gathered.peak)
    return store.seal_files(name, tuple(files), b""), peaks


def loaded(directory: Path) -> Tensors:
    """As Hugging Face's libraries do: by the index, if there is one."""
    from safetensors.torch import load_file

    index = directory / "model.safetensors.index.json"
    if not index.exists():
        whole: Tensors = load_file(directory / "model.safetensors")
        return whole
    places = json.loads(index.read_text())["weight_map"]
    found = {file: load_file(directory / file) for file in set(places.values())}
    assert sum(map(len, found.values())) == len(places), "nothing is written twice"
    return {name: found[file][name] for name, file in places.items()}


def test_weights_of_release_0_1_are_taken_over_with_both_roots(tmp_path: Path) -> None:
    """Up to the newest version of that release, weights are compared by its hash."""
    import torch

    from services.trainer.checkpoints.weights import ModelFiles, WeightsStore
    from trinity.weights.tensors import RootDigest

    files = ModelFiles(copy=tmp_path / "files", dtype="float32", chat_template=None)
    files.copy_from(write_model(tmp_path / "model"))
    store = WeightsStore(
        root=tmp_path / "w", stage="rft", files=files, dtype=torch.float32, sha256_until=2
    )
    store.load_announced([], incarnation=1)
    digest = RootDigest("sha256", "blake3")
    for tensor in tensors_of().items():
        digest.add_tensor(*tensor)
    both = digest.roots()
    written = [store.write(tensors_of(), version=version, incarnation=1) for version in (2, 3)]
    assert [(w.weights_sha256, w.weights_blake3) for w in written] == [
        (both.weights_sha256, both.weights_blake3),
        (b"", both.weights_blake3),
    ]
    of_old = as_release_0_1(written[0], both.weights_sha256)
    store.load_announced([of_old], incarnation=2)
    again = store.republish(2, incarnation=2)
    assert again is not None and same_weights(again, of_old) and same_weights(again, written[1])
    assert verify(again.path, again.manifest_sha256).roots == both


def as_release_0_1(weights: WeightsOnDisk, root: bytes) -> WeightsOnDisk:
    """Writes the manifest again as that release wrote it."""
    path = weights.path / MANIFEST_NAME
    content = json.loads(path.read_text())
    del content["weights_blake3"]
    for name in content["files"]:
        found = (weights.path / name).read_bytes()
        content["files"][name] = {"sha256": sha256(found).hexdigest(), "size": len(found)}
    text = json.dumps(content | {"num_ranks": 1, "weights_sha256": root.hex()}).encode()
    path.write_bytes(text)
    return replace(
        weights, manifest_sha256=sha256(text).digest(), weights_sha256=root, weights_blake3=b""
    )


@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_any_number_of_ranks_writes_the_same_weights(store: "WeightsStore", num_ranks: int) -> None:
    import torch

    from services.trainer.checkpoints.weights import weights_hash

    weights, _ = written_by(store, num_ranks)
    assert weights.weights_blake3 == weights_hash(tensors_of())
    verify(weights.path, weights.manifest_sha256)
    found = loaded(weights.path)
    assert found.keys() == SIZES.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors_of().items())
    assert len(list(weights.path.glob("*.safetensors"))) == num_ranks


def test_the_disk_is_waited_for_while_files_are_hashed(
    store: "WeightsStore", monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of the three waits for the others: one after the other they would never end."""
    from services.trainer.checkpoints import dealt

    together = threading.Barrier(3, timeout=10)

    def meeting(name: str) -> None:
        original = getattr(dealt, name)

        def meet(path: Path, *hashes: str) -> object:
            together.wait()
            return original(path, *hashes)

        monkeypatch.setattr(dealt, name, meet)

    for name in ("make_durable", "describe", "tensor_hashes_in"):
        meeting(name)
    weights, _ = written_by(store, 2)
    verify(weights.path, weights.manifest_sha256)


@pytest.mark.parametrize("failing", ["make_durable", "describe", "tensor_hashes_in"])
def test_weights_that_cannot_be_read_or_kept_are_no_version(
    store: "WeightsStore", monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    from services.trainer.checkpoints import dealt

    def fail(path: Path, *_: str) -> None:
        raise OSError(errno.EIO, "broken disk", str(path))

    monkeypatch.setattr(dealt, failing, fail)
    with pytest.raises(OSError, match="broken disk"):
        written_by(store, 1)


def test_the_index_says_how_large_the_weights_are(store: "WeightsStore") -> None:
    weights, _ = written_by(store, 4)
    index = json.loads((weights.path / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == 4 * sum(SIZES.values())


def test_ranks_write_about_the_same_number_of_bytes(store: "WeightsStore") -> None:
    weights, _ = written_by(store, 4)
    sizes = [path.stat().st_size for path in weights.path.glob("*.safetensors")]
    assert max(sizes) - min(sizes) <= LARGEST


def test_a_rank_holds_a_bucket_and_the_tensor_that_is_gathered(
    store: "WeightsStore", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.trainer.checkpoints.dealt.MAX_BUCKET_BYTES", BUCKET)
    weights, peaks = written_by(store, 2)
    assert max(peaks) <= max(BUCKET, LARGEST) + LARGEST
    assert len(list(weights.path.glob("*.safetensors"))) > 2
    assert loaded(weights.path).keys() == SIZES.keys()
    monkeypatch.setattr("services.trainer.checkpoints.dealt.MAX_BUCKET_BYTES", 2**30)
    _, peaks = written_by(store, 1)
    assert peaks == [4 * sum(SIZES.values())], "the control: this count sees what is kept"


def test_a_flipped_bit_in_any_ranks_file_is_found(store: "WeightsStore") -> None:
    weights, _ = written_by(store, 2)
    for path in weights.path.glob("*.safetensors"):
        before = path.read_bytes()
        path.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
        with pytest.raises(ManifestError, match=path.name):
            verify(weights.path, weights.manifest_sha256)
        path.write_bytes(before)
    verify(weights.path, weights.manifest_sha256)


def test_another_bit_of_a_tensor_is_another_root() -> None:
    from services.trainer.checkpoints.dealt import root_on_all_ranks
    from services.trainer.checkpoints.weights import ALONE, weights_hash

    changed = tensors_of()
    assert root_on_all_ranks(changed.items(), ALONE) == weights_hash(tensors_of())
    changed["norm"][0, 0] += 1
    assert root_on_all_ranks(changed.items(), ALONE) != weights_hash(tensors_of())
