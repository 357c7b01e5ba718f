"""A directory counts only if its manifest vouches for every bit of it."""

import errno
import os
import threading
from pathlib import Path

import pytest

from tests.support.model_free.damage import FAULTS
from tests.support.model_free.model import write_model
from trinity.errors import ManifestError
from trinity.weights import manifest
from trinity.weights.identity import HashName
from trinity.weights.manifest import (
    MANIFEST_NAME,
    ManifestHead,
    file_signature,
    move_into_place,
    read,
    seal,
    verify,
)


@pytest.fixture
def sealed(tmp_path: Path) -> tuple[Path, bytes]:
    directory = tmp_path / "v3-1.tmp"
    (directory / "inner").mkdir(parents=True)
    (directory / "model.safetensors").write_bytes(b"0123456789")
    (directory / "inner" / "config.json").write_text("{}")
    head = ManifestHead(
        kind="weights", stage="rft", step=3, incarnation=1, weights_sha256="ab" * 32
    )
    manifest = seal(directory, head)
    move_into_place(directory, tmp_path / "v3-1")
    return tmp_path / "v3-1", manifest


def test_an_untouched_directory_verifies(sealed: tuple[Path, bytes]) -> None:
    manifest = verify(*sealed)
    assert (manifest.kind, manifest.stage, manifest.step) == ("weights", "rft", 3)
    assert sorted(manifest.files) == ["inner/config.json", "model.safetensors"]


def test_a_flipped_bit_is_found(sealed: tuple[Path, bytes]) -> None:
    path = sealed[0] / "model.safetensors"
    path.write_bytes(b"0123456788")
    with pytest.raises(ManifestError, match=r"model\.safetensors has changed"):
        verify(*sealed)


def test_a_missing_file_is_named(sealed: tuple[Path, bytes]) -> None:
    (sealed[0] / "inner" / "config.json").unlink()
    with pytest.raises(ManifestError, match=r"inner/config\.json is missing"):
        verify(*sealed)


def test_a_file_that_the_disk_does_not_give_is_named(
    sealed: tuple[Path, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(path: Path, _: str) -> None:
        raise OSError(errno.EIO, "Input/output error", str(path))

    monkeypatch.setattr(manifest, "describe", damaged)
    with pytest.raises(ManifestError, match=r"config\.json cannot be read: Input/output error"):
        verify(*sealed)


def test_files_are_hashed_side_by_side(
    sealed: tuple[Path, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each waits for the other: one after the other they would never end."""
    describe, together = manifest.describe, threading.Barrier(2, timeout=10)

    def meet(path: Path, name: HashName) -> manifest.ManifestFile:
        together.wait()
        return describe(path, name)

    monkeypatch.setattr(manifest, "describe", meet)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    assert len(verify(*sealed).files) == 2
    monkeypatch.setattr(manifest, "describe", describe)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    verify(*sealed)


def test_what_differs_first_in_the_manifest_is_named_whichever_is_read_first(
    sealed: tuple[Path, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    (sealed[0] / "inner" / "config.json").write_text("[]")
    (sealed[0] / "model.safetensors").write_bytes(b"9876543210")
    describe, second_read = manifest.describe, threading.Event()

    def out_of_order(path: Path, name: HashName) -> manifest.ManifestFile:
        if path.name == "config.json":
            assert second_read.wait(10)
        try:
            return describe(path, name)
        finally:
            second_read.set()

    monkeypatch.setattr(manifest, "describe", out_of_order)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    with pytest.raises(ManifestError, match=r"inner/config\.json has changed"):
        verify(*sealed)


def test_a_file_too_many_is_named(sealed: tuple[Path, bytes]) -> None:
    (sealed[0] / "extra.pt").write_bytes(b"")
    with pytest.raises(ManifestError, match=r"extra\.pt is not in the manifest"):
        verify(*sealed)


def test_another_manifest_than_the_announced_one_is_refused(sealed: tuple[Path, bytes]) -> None:
    directory, manifest = sealed
    path = directory / MANIFEST_NAME
    path.write_text(path.read_text().replace('"step": 3', '"step":3'))
    with pytest.raises(ManifestError, match="not the manifest that was announced"):
        read(directory, manifest)


def test_a_directory_without_a_manifest_does_not_count(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="cannot be read"):
        verify(tmp_path, b"\0" * 32)


@pytest.fixture
def published(tmp_path: Path) -> tuple[Path, bytes]:
    """Weights as a trainer leaves them."""
    directory = write_model(tmp_path / "v3-1")
    head = ManifestHead(
        kind="weights", stage="rft", step=3, incarnation=1, weights_sha256="ab" * 32
    )
    return directory, seal(directory, head)


@pytest.mark.parametrize("fault", FAULTS)
def test_every_kind_of_damage_is_found_and_changes_the_signature(
    published: tuple[Path, bytes], fault: str
) -> None:
    before = file_signature(published[0])
    verify(*published)
    assert file_signature(published[0]) == before, "reading changes nothing"
    FAULTS[fault](published[0])
    with pytest.raises(ManifestError):
        verify(*published)
    assert file_signature(published[0]) != before


def test_a_pipe_in_the_place_of_a_manifest_is_not_waited_for(published: tuple[Path, bytes]) -> None:
    (published[0] / MANIFEST_NAME).unlink()
    os.mkfifo(published[0] / MANIFEST_NAME)
    with pytest.raises(ManifestError, match="not a regular file"):
        verify(*published)


def test_an_endless_manifest_is_not_read_whole(published: tuple[Path, bytes]) -> None:
    with (published[0] / MANIFEST_NAME).open("ab") as file:
        file.truncate(manifest.MAX_MANIFEST_BYTES + 1)
    with pytest.raises(ManifestError, match="more than"):
        verify(*published)
