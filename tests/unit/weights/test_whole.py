"""Engines of a host load differences from the same memory, and nothing in it has to be trusted."""

import gc
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.unit.subtests import as_subtests
from trinity.errors import ManifestError
from trinity.weights import whole
from trinity.weights.delta import SUFFIX, DeltaRecord, write_difference
from trinity.weights.identity import WeightsRoots
from trinity.weights.stored import DELTA_NAME
from trinity.weights.tensors import RootDigest
from trinity.weights.whole import SharedModel, remove_unused

FILES = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
BASES = {1: 0, 2: 0, 3: 0, 5: 4}
"""Versions that are differences, and the whole ones that they build on."""


def tensors_of(version: int, file: int) -> dict[str, torch.Tensor]:
    draws = torch.Generator().manual_seed(file)
    made = {f"layer.{file}.{n}": torch.randn(64, 33, generator=draws).bfloat16() for n in range(3)}
    made[f"layer.{file}.1"][version, :5] += 1.0
    return made


def write_version(weights: Path, version: int) -> WeightsRoots:
    directory = weights / f"v{version}-1"
    directory.mkdir(parents=True)
    (directory / "lineage.json").write_text(f"{version}")
    digest, base = RootDigest("blake3"), BASES.get(version)
    for number, name in enumerate(FILES):
        tensors = tensors_of(version, number)
        save_file(tensors, directory / name)
        for tensor in tensors.items():
            digest.add_tensor(*tensor)
        if base is not None:
            assert write_difference(directory / name, weights / f"v{base}-1" / name)
            (directory / name).unlink()
    if base is not None:
        record = DeltaRecord(
            base_version=base, base_incarnation=1, num_bytes=99, tensors=tuple(digest.hashes)
        )
        (directory / DELTA_NAME).write_text(record.model_dump_json())
    return digest.roots()


class Host:
    """A folder of weights, and the memory of one host."""

    def __init__(self, folder: Path) -> None:
        self.weights, self.memory = folder / "weights", folder / "memory"
        self.memory.mkdir(parents=True)
        self.roots = {version: write_version(self.weights, version) for version in range(6)}

    def path(self, version: int) -> Path:
        return self.weights / f"v{version}-1"

    def assert_loads(self, shared: SharedModel, version: int) -> Path:
        from safetensors.torch import load_file

        with shared.whole_model(self.path(version), self.roots[version]) as made:
            for number, name in enumerate(FILES):
                found = load_file(made / name)
                for tensor, expected in tensors_of(version, number).items():
                    assert torch.equal(found[tensor], expected)
            assert (made / "lineage.json").read_text() == str(version)
            return made

    @property
    def held(self) -> Path:
        (folder,) = self.memory.iterdir()
        return folder


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    made = Host(tmp_path)
    monkeypatch.setattr(whole, "SHARED_MEMORY", made.memory)
    return made


def test_versions_take_each_other_s_place_without_their_base(host: Host) -> None:
    shared, other = SharedModel(), SharedModel()
    held = host.assert_loads(shared, 1)
    assert held == host.held
    inode = (held / FILES[0]).stat().st_ino
    shutil.rmtree(host.path(0))
    for version in (2, 3, 1):
        for engine in (shared, other):
            assert host.assert_loads(engine, version) == held
    assert (held / FILES[0]).stat().st_ino == inode, "a model is there once"
    assert host.assert_loads(shared, 4) == host.path(4), "a whole version is loaded where it is"
    host.assert_loads(shared, 5)
    assert {path.name.removesuffix(SUFFIX) for path in held.iterdir()} == {
        *FILES, "lineage.json", DELTA_NAME, whole.TURN_NAME,
    }  # fmt: skip
    with pytest.raises(ManifestError, match="v0-1"):
        host.assert_loads(shared, 1)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))


def half_changed(held: Path) -> None:
    """As a process leaves it that is killed between two files."""
    flip(held / FILES[0])
    (held / DELTA_NAME).unlink()


def of_another(held: Path) -> None:
    record = json.loads((held / DELTA_NAME).read_text())
    (held / DELTA_NAME).write_text(json.dumps(record | {"num_bytes": 98}))
    flip(held / FILES[1])


FAULTS: dict[str, Callable[[Path], object]] = {
    "a bit of the model": lambda held: flip(held / FILES[1]),
    "a bit of the difference": lambda held: flip(held / (FILES[1] + SUFFIX)),
    "a short model": lambda held: os.truncate(held / FILES[0], 100),
    "an empty model": lambda held: os.truncate(held / FILES[0], 0),
    "no model": lambda held: (held / FILES[0]).unlink(),
    "no difference": lambda held: (held / (FILES[0] + SUFFIX)).unlink(missing_ok=True),
    "a record that is none": lambda held: (held / DELTA_NAME).write_text("{}"),
    "half a change": half_changed,
    "the record of another": of_another,
}


@as_subtests("fault", FAULTS)
def test_what_went_bad_in_memory_is_made_again_from_the_disk(
    tmp_path_factory: pytest.TempPathFactory, fault: str
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        host = Host(tmp_path_factory.mktemp("host"))
        patch.setattr(whole, "SHARED_MEMORY", host.memory)
        shared = SharedModel()
        for version in (1, 2):
            held = host.assert_loads(shared, 1)
            FAULTS[fault](held)
            assert host.assert_loads(shared, version) == held


def test_what_is_damaged_on_the_disk_is_reported_and_takes_no_memory(host: Host) -> None:
    shared = SharedModel()
    host.assert_loads(shared, 1)
    flip(host.path(2) / (FILES[1] + SUFFIX))
    with pytest.raises(ManifestError, match="v2-1"):
        host.assert_loads(shared, 2)
    assert [path.name for path in host.held.iterdir()] == [whole.TURN_NAME]
    assert host.assert_loads(shared, 3) == host.held


def test_the_last_engine_to_leave_removes_it(host: Host) -> None:
    shared, other = SharedModel(), SharedModel()
    for engine in (shared, other):
        held = host.assert_loads(engine, 1)
    shared.close()
    assert held.is_dir()
    assert host.assert_loads(shared, 2) == held
    other.close()
    del shared
    gc.collect()
    assert not held.exists()


def test_what_a_killed_explorer_left_is_removed_at_the_next_start(host: Host) -> None:
    code = (
        "import os, sys; from pathlib import Path; from trinity.weights import whole;"
        "whole.SHARED_MEMORY = Path(sys.argv[1]); shared = whole.SharedModel();"
        "print(shared._join(Path(sys.argv[2])), flush=True); os.kill(os.getpid(), 9)"
    )
    line = [sys.executable, "-c", code, str(host.memory), str(host.path(1))]
    left = subprocess.run(line, capture_output=True, text=True, check=False).stdout.strip()
    assert left == str(host.held)
    shared = SharedModel()
    host.assert_loads(shared, 1)
    remove_unused(host.memory)
    assert host.held.is_dir(), "it is used"
    shared.close()
    assert not list(host.memory.iterdir())


def test_scratch_is_used_while_others_load_another_version(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whole, "TURN_SECONDS", 0.2)
    slow, fast = SharedModel(), SharedModel()
    with slow.whole_model(host.path(1), host.roots[1]) as held:
        assert host.assert_loads(fast, 1) == held
        assert host.assert_loads(fast, 2) != held
        assert host.assert_loads(fast, 1) == held


def test_scratch_is_used_where_memory_has_no_room_or_is_another_user_s(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = SharedModel()
    with monkeypatch.context() as patch:
        patch.setattr(whole, "_has_room", lambda *_: False)
        assert host.memory not in host.assert_loads(shared, 1).parents
    with monkeypatch.context() as patch:
        (host.memory / f"{whole.PREFIX}{os.getuid() + 1}-1").mkdir()
        patch.setattr(os, "getuid", lambda: os.geteuid() + 1)
        made = host.assert_loads(shared, 1)
        assert made.name.startswith(f"{whole.PREFIX}v1-1@")
    with monkeypatch.context() as patch:
        patch.setattr(whole, "_copy", full_disk)
        made = host.assert_loads(SharedModel(), 1)
    assert not made.exists()


def full_disk(*_: object) -> None:
    raise OSError(28, "No space left on device")
