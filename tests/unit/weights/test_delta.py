"""Versions that are stored as differences are, once applied, the bytes that were written."""

import json
import socket
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import zstandard
from safetensors.torch import save_file

from tests.unit.subtests import as_subtests
from trinity.errors import ManifestError
from trinity.weights import delta
from trinity.weights.delta import DeltaRecord, write_difference
from trinity.weights.identity import WeightsRoots
from trinity.weights.stored import DELTA_NAME
from trinity.weights.tensors import RootDigest
from trinity.weights.whole import PREFIX, whole_model

FILE = "model.safetensors"
DIFFERENCE = FILE + delta.SUFFIX


def tensors_of(step: int) -> dict[str, torch.Tensor]:
    """Each step changes a few numbers."""
    draws = torch.Generator().manual_seed(1)
    made = {f"layer.{n}": torch.randn(64, 33, generator=draws).bfloat16() for n in range(3)}
    made["layer.1"][step, :5] += 1.0
    return made


def write_delta(folder: Path) -> tuple[Path, WeightsRoots]:
    """Version 2 as its difference to version 1, and the roots of version 2."""
    for step in (1, 2):
        (folder / f"v{step}-1").mkdir(parents=True)
        save_file(tensors_of(step), folder / f"v{step}-1" / FILE)
    directory = folder / "v2-1"
    (directory / "config.json").write_text("{}")
    assert write_difference(directory / FILE, folder / "v1-1" / FILE) == directory / DIFFERENCE
    (directory / FILE).rename(folder / "expected")
    digest = RootDigest("blake3")
    for tensor in tensors_of(2).items():
        digest.add_tensor(*tensor)
    record = DeltaRecord(
        base_version=1, base_incarnation=1, num_bytes=99, tensors=tuple(digest.hashes)
    )
    (directory / DELTA_NAME).write_text(record.model_dump_json())
    return directory, digest.roots()


def test_the_bytes_are_those_that_a_plain_xor_gives(tmp_path: Path) -> None:
    directory, roots = write_delta(tmp_path)
    packed = (directory / DIFFERENCE).read_bytes()
    base = np.frombuffer((tmp_path / "v1-1" / FILE).read_bytes(), np.uint8)
    unpacked = np.frombuffer(zstandard.ZstdDecompressor().stream_reader(packed).read(), np.uint8)
    plain = base.copy()
    plain[0::2] ^= unpacked[: len(base) // 2]
    plain[1::2] ^= unpacked[len(base) // 2 :]
    expected = (tmp_path / "expected").read_bytes()
    assert plain.tobytes() == expected
    assert len(packed) < len(expected) / 20
    for scratch in (None, tmp_path):
        with whole_model(directory, roots, scratch) as whole:
            assert (whole / FILE).read_bytes() == expected
            assert {path.name for path in whole.iterdir()} == {FILE, "config.json"}
        assert not whole.exists()


def test_a_copy_stands_in_for_its_base(tmp_path: Path) -> None:
    directory, roots = write_delta(tmp_path)
    (tmp_path / "v1-1").rename(tmp_path / "v1-1-2")
    (tmp_path / "v1-1-3.tmp").mkdir()
    with whole_model(directory, roots) as whole:
        assert (whole / FILE).read_bytes() == (tmp_path / "expected").read_bytes()


def flip(path: Path, place: int = -1) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(bytes(content))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def other_hash(directory: Path) -> None:
    record = json.loads((directory / DELTA_NAME).read_text())
    record["tensors"][1]["blake3"] = "0" * 64
    (directory / DELTA_NAME).write_text(json.dumps(record))


def other_difference(directory: Path) -> None:
    """One that says what it is not."""
    base = directory.parent / "v1-1" / FILE
    packed = zstandard.ZstdCompressor().compress(bytes(base.stat().st_size))
    (directory / DIFFERENCE).write_bytes(packed)


FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "a bit of the base": (lambda at: flip(at.parent / "v1-1" / FILE), "another layer.2"),
    "a header of the base": (lambda at: flip(at.parent / "v1-1" / FILE, 20), "layer|safetensors"),
    "a short base": (lambda at: cut(at.parent / "v1-1" / FILE), "do not belong together"),
    "no base": (lambda at: (at.parent / "v1-1" / FILE).unlink(), "cannot be applied to .*v1-1"),
    "a short difference": (lambda at: cut(at / DIFFERENCE), "v2-1"),
    "another difference": (other_difference, "another layer.1"),
    "another hash": (other_hash, "another layer.1"),
    "no record": (lambda at: (at / DELTA_NAME).write_text("{}"), "cannot be read"),
}


@as_subtests("fault", FAULTS)
def test_what_does_not_verify_is_not_loaded(
    tmp_path_factory: pytest.TempPathFactory, fault: str
) -> None:
    directory, roots = write_delta(tmp_path_factory.mktemp("faulty"))
    with whole_model(directory, roots):
        pass
    damage, message = FAULTS[fault]
    damage(directory)
    with pytest.raises(ManifestError, match=message), whole_model(directory, roots):
        pytest.fail("it was loaded")


def test_other_weights_than_announced_are_not_loaded(tmp_path: Path) -> None:
    directory, _ = write_delta(tmp_path)
    announced = WeightsRoots(weights_blake3=bytes(32))
    with pytest.raises(ManifestError, match="other weights"), whole_model(directory, announced):
        pytest.fail("it was loaded")


@pytest.mark.parametrize("block_bytes", [1024, delta.BLOCK_BYTES])
def test_a_difference_that_is_not_small_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block_bytes: int
) -> None:
    monkeypatch.setattr(delta, "BLOCK_BYTES", block_bytes)
    for name, content in (("base", bytes(9999)), ("same", bytes(9999)), ("short", bytes(9998))):
        (tmp_path / name).write_bytes(content)
    (tmp_path / "other").write_bytes(np.random.default_rng(1).bytes(9999))
    assert write_difference(tmp_path / "same", tmp_path / "base") is not None
    for name in ("other", "short"):
        assert write_difference(tmp_path / name, tmp_path / "base") is None
    assert write_difference(tmp_path / "same", tmp_path / "gone") is None
    assert not list(tmp_path.glob(f"[os]*r*{delta.SUFFIX}"))


def test_what_a_killed_process_left_is_removed_and_what_is_used_is_not(tmp_path: Path) -> None:
    directory, roots = write_delta(tmp_path / "weights")
    left = tmp_path / f"{PREFIX}v1-1@{socket.gethostname()}-left"
    elsewhere = tmp_path / f"{PREFIX}v1-1@elsewhere-used"
    for path in (left, elsewhere):
        path.mkdir()
    with (
        whole_model(directory, roots, tmp_path) as used,
        whole_model(directory, roots, tmp_path),
    ):
        assert used.is_dir() and elsewhere.is_dir() and not left.exists()
