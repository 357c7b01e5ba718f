"""The published weights of a stage, each version a complete Hugging Face model on disk."""

import json
import logging
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file

from services.trainer.types import WeightsOnDisk
from trinity.errors import ManifestError
from trinity.weights.manifest import (
    MANIFEST_NAME,
    ManifestHead,
    make_durable,
    move_into_place,
    seal,
    verify,
)
from trinity.weights.tensors import WeightsDigest

logger = logging.getLogger(__name__)


SUFFIXES = frozenset({".json", ".jinja", ".txt", ".model", ".py", ".tiktoken"})
CHAT_TEMPLATE_NAME = "chat_template.jinja"
WEIGHTS_NAME = "model.safetensors"
TEMPORARY_SUFFIX = ".tmp"
NAME_PATTERN = re.compile(r"[a-z-]+\d+-(\d+)")
MIN_KEPT_VERSIONS = 2
NO_PARENT = -1
"""The parent of a stage's starting weights."""
WeightTensors = dict[str, torch.Tensor]
"""Whole weights by their Hugging Face names, in the published dtype."""


class ModelFiles:
    """A copy of a model's small files, linked into each version; the user's own stay unchanged.

    files = ModelFiles(copy=weights_root / ".model", dtype="float32", chat_template=None)
    files.copy_from(model_directory)
    files.link_into(version_directory)
    """

    def __init__(self, *, copy: Path, dtype: str, chat_template: str | None) -> None:
        self._copy = copy
        self._dtype = dtype
        self._chat_template = chat_template

    def copy_from(self, model_directory: Path) -> None:
        """Copies the small files, with the dtype of the published weights."""
        shutil.rmtree(self._copy, ignore_errors=True)
        self._copy.mkdir(parents=True)
        for path in sorted(model_directory.iterdir()):
            if _is_small_file(path):
                shutil.copyfile(path, self._copy / path.name)
        self._write_dtype()
        if self._chat_template is not None:
            (self._copy / CHAT_TEMPLATE_NAME).write_text(self._chat_template)
        for path in self._copy.iterdir():
            make_durable(path)

    def link_into(self, directory: Path) -> frozenset[str]:
        """Hard-links the files into a directory; returns their names, all of them durable."""
        paths = sorted(self._copy.iterdir())
        for path in paths:
            os.link(path, directory / path.name)
        return frozenset(path.name for path in paths)

    def _write_dtype(self) -> None:
        path = self._copy / "config.json"
        config = json.loads(path.read_text())
        config.pop("torch_dtype", None)
        path.write_text(json.dumps({**config, "dtype": self._dtype}, indent=2, sort_keys=True))


def _is_small_file(path: Path) -> bool:
    """Returns False for weights and for the index of their shards."""
    if path.name == MANIFEST_NAME or path.name.endswith(".index.json"):
        return False
    return path.is_file() and path.suffix in SUFFIXES


def weights_hash(tensors: Mapping[str, torch.Tensor]) -> bytes:
    """Returns the SHA-256 over names, types, shapes and bytes, for any order and file format."""
    digest = WeightsDigest()
    for name in sorted(tensors):
        digest.add_tensor(name, tensors[name])
    return digest.digest()


class WeightsStore:
    """The published versions of one stage; one writer at a time, the newest incarnation.

    published = store.write(store.to_published_dtype(tensors), version=4, incarnation=1)
    removed = store.prune(pinned={2})
    """

    def __init__(self, *, root: Path, stage: str, files: ModelFiles, dtype: torch.dtype) -> None:
        self._root = root
        self._stage = stage
        self._files = files
        self._dtype = dtype
        self._published: list[WeightsOnDisk] = []

    def load_announced(self, published: Iterable[WeightsOnDisk], incarnation: int) -> None:
        """Begins with the announced versions, and removes other leftovers of earlier lives."""
        self._published = sorted(p for p in published if p.path.parent == self._root)
        known = {weights.path.name for weights in self._published}
        remove_leftovers(self._root, kept=known, incarnation=incarnation)

    def write(self, weights: WeightTensors, *, version: int, incarnation: int) -> WeightsOnDisk:
        """Writes a complete Hugging Face directory; it is renamed once whole and durable."""
        temporary = self._new_directory(version, incarnation)
        save_file(weights, temporary / WEIGHTS_NAME, metadata={"format": "pt"})
        durable = self._files.link_into(temporary)
        return self._seal(temporary, version, incarnation, weights_hash(weights), durable)

    def republish(self, version: int, incarnation: int) -> WeightsOnDisk | None:
        """Publishes an earlier incarnation's weights under this incarnation's name.

        Returns None when no intact copy is left.
        """
        for old in sorted(self._published, reverse=True):
            if old.version != version:
                continue
            try:
                manifest = verify(old.path, old.manifest_sha256)
            except ManifestError as error:
                logger.warning("published weights are damaged", extra={"reason": str(error)})
                continue
            temporary = self._new_directory(version, incarnation)
            for name in manifest.files:
                os.link(old.path / name, temporary / name)
            durable = frozenset(manifest.files)
            return self._seal(temporary, version, incarnation, old.weights_sha256, durable)
        return None

    def _new_directory(self, version: int, incarnation: int) -> Path:
        temporary = self._root / f"v{version}-{incarnation}{TEMPORARY_SUFFIX}"
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        return temporary

    def _seal(
        self,
        temporary: Path,
        version: int,
        incarnation: int,
        digest: bytes,
        durable: frozenset[str],
    ) -> WeightsOnDisk:
        head = ManifestHead(
            kind="weights",
            stage=self._stage,
            step=version,
            incarnation=incarnation,
            weights_sha256=digest.hex(),
        )
        manifest = seal(temporary, head, durable)
        final = temporary.with_suffix("")
        shutil.rmtree(final, ignore_errors=True)
        move_into_place(temporary, final)
        weights = WeightsOnDisk(
            version=version,
            incarnation=incarnation,
            path=final,
            manifest_sha256=manifest,
            weights_sha256=digest,
            parent=self._parent_of(version),
        )
        self._published.append(weights)
        return weights

    def to_published_dtype(
        self, tensors: Iterable[tuple[str, torch.Tensor]], *, copied: bool = False
    ) -> WeightTensors:
        """Converts to the published dtype; unless copied, float32 tensors alias their source."""
        return {name: tensor.to(self._dtype, copy=copied).contiguous() for name, tensor in tensors}

    def _parent_of(self, version: int) -> int:
        """Returns the parent of an earlier incarnation's copy, else the newest older version."""
        copies = [w.parent for w in self._published if w.version == version]
        older = [w.version for w in self._published if w.version < version]
        return max(copies or older, default=NO_PARENT)

    def prune(self, pinned: set[int]) -> list[WeightsOnDisk]:
        """Deletes versions that are neither pinned nor among the newest; returns the deleted."""
        ordered = sorted(self._published, reverse=True)
        kept = ordered[:MIN_KEPT_VERSIONS]
        kept += [w for w in ordered[MIN_KEPT_VERSIONS:] if w.version in pinned]
        removed = [weights for weights in ordered if weights not in kept]
        for weights in removed:
            shutil.rmtree(weights.path, ignore_errors=True)
        self._published = sorted(kept)
        return removed


def remove_leftovers(root: Path, *, kept: set[str], incarnation: int) -> None:
    """Removes what earlier incarnations began and never announced; creates the root if missing."""
    root.mkdir(parents=True, exist_ok=True)
    for path in root.iterdir():
        if path.name not in kept and _is_leftover(path, incarnation):
            shutil.rmtree(path)


def _is_leftover(path: Path, incarnation: int) -> bool:
    if path.suffix == TEMPORARY_SUFFIX:
        return True
    match = NAME_PATTERN.fullmatch(path.name)
    return match is not None and int(match[1]) < incarnation
