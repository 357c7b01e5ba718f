"""The published weights of a stage, each version a complete Hugging Face model on disk."""

import json
import logging
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from services.trainer.checkpoints.dealt import (
    DealtPart,
    WeightsFile,
    gather_files,
    name_files,
    roots_of_files,
    tensor_hashes_in,
)
from services.trainer.collectives import Ranks
from services.trainer.types import StageLearner, WeightsOnDisk
from trinity.config.plan.rope import with_rope
from trinity.config.schema.model import ModelConfig
from trinity.errors import ManifestError
from trinity.runtime.life import UNWATCHED, LifeSigns
from trinity.weights.delta import DeltaRecord, apply_delta, base_of, check_applied, read_record
from trinity.weights.identity import HashName, WeightsRoots, roots_of, same_weights
from trinity.weights.ledger import LedgerEntry, WeightsLedger
from trinity.weights.manifest import (
    MANIFEST_NAME,
    ManifestFile,
    ManifestHead,
    link_or_copy,
    make_durable,
    move_into_place,
    seal,
    verify,
)
from trinity.weights.stored import (
    DELTA_NAME,
    LINEAGE_NAME,
    is_delta,
    read_lineage,
    write_lineage,
)
from trinity.weights.tensors import RootDigest
from trinity.weights.whole import PREFIX, scratch_of

logger = logging.getLogger(__name__)

SUFFIXES = frozenset({".json", ".jinja", ".txt", ".model", ".py", ".tiktoken"})
CHAT_TEMPLATE_NAME = "chat_template.jinja"
TEMPORARY_SUFFIX = ".tmp"
NAME_PATTERN = re.compile(r"[a-z-]+\d+-(\d+)(?:-\d+)?")
MIN_KEPT_VERSIONS = 2
WHOLE_EVERY = 8
"""Number of versions for each whole one: differences to it grow with each step."""
NO_PARENT = -1
"""The parent of a stage's starting weights."""
ALONE = Ranks(rank=0, num_ranks=1)
WeightTensors = dict[str, torch.Tensor]
"""Whole weights by their Hugging Face names, in the published dtype."""


class ModelFiles:
    """A copy of a model's small files, linked into each version; the user's own stay unchanged.

    files = ModelFiles(copy=weights_root / ".model", dtype="float32", chat_template=None)
    files.copy_from(model_directory)
    files.link_into(version_directory)
    """

    def __init__(
        self,
        *,
        copy: Path,
        dtype: str,
        chat_template: str | None,
        model: ModelConfig | None = None,
    ) -> None:
        self._copy = copy
        self._model = model
        self._dtype = dtype
        self._chat_template = chat_template
        self._contents: dict[str, bytes] = {}

    def copy_from(self, model_directory: Path) -> None:
        """Copies the small files, with the dtype of the published weights."""
        remove_tree(self._copy)
        self._copy.mkdir(parents=True)
        for path in sorted(model_directory.iterdir()):
            if _is_small_file(path) or self._is_trusted_code(path):
                shutil.copyfile(path, self._copy / path.name)
        self._write_dtype()
        if self._chat_template is not None:
            (self._copy / CHAT_TEMPLATE_NAME).write_text(self._chat_template)
        for path in sorted(self._copy.iterdir()):
            make_durable(path)
            self._contents[path.name] = path.read_bytes()

    def _is_trusted_code(self, path: Path) -> bool:
        """Returns True for code without which the published model cannot be read."""
        return path.suffix == ".py" and self._model is not None and self._model.trust_remote_code

    def link_into(self, directory: Path) -> frozenset[str]:
        """Links the files into a directory; returns their names, all of them durable.

        Hard links share one file: a damaged one is written again from memory, so that later
        versions do not share the damage.
        """
        for name, content in self._contents.items():
            if not _holds(self._copy / name, content):
                self._write_again(name, content)
            link_or_copy(self._copy / name, directory / name)
        return frozenset(self._contents)

    def _write_again(self, name: str, content: bytes) -> None:
        logger.warning("a model's file was damaged", extra={"path": str(self._copy / name)})
        self._copy.mkdir(parents=True, exist_ok=True)
        fresh = self._copy / f".{name}{TEMPORARY_SUFFIX}"
        fresh.write_bytes(content)
        make_durable(fresh)
        remove_tree(self._copy / name)
        fresh.rename(self._copy / name)

    def _write_dtype(self) -> None:
        path = self._copy / "config.json"
        config = json.loads(path.read_text())
        config.pop("torch_dtype", None)
        if self._model is not None:
            config = with_rope(config, self._model)
        path.write_text(json.dumps({**config, "dtype": self._dtype}, indent=2, sort_keys=True))


def _holds(path: Path, content: bytes) -> bool:
    try:
        return path.is_file() and path.read_bytes() == content
    except OSError:
        return False


def _is_small_file(path: Path) -> bool:
    """Returns False for weights and for the index of their shards."""
    if path.name in (MANIFEST_NAME, LINEAGE_NAME, DELTA_NAME) or path.name.endswith(".index.json"):
        return False
    return path.is_file() and path.suffix in SUFFIXES


def weights_hash(tensors: Mapping[str, torch.Tensor]) -> bytes:
    """Returns the root by BLAKE3 over the tensors, for any order and file format."""
    digest = RootDigest("blake3")
    for name, tensor in tensors.items():
        digest.add_tensor(name, tensor)
    return digest.roots().weights_blake3


@dataclass(frozen=True, slots=True)
class WeightsName:
    """The numbers that name a directory of weights."""

    version: int
    incarnation: int
    copy: int = 0

    @property
    def directory(self) -> str:
        """The directory's name; the first copy has no number."""
        suffix = f"-{self.copy}" if self.copy else ""
        return f"v{self.version}-{self.incarnation}{suffix}"


class WeightsStore:
    """The published versions of one stage; one writer at a time, the newest incarnation.

    published = store.write(store.to_published_dtype(tensors), version=4, incarnation=1)
    removed = store.prune(pinned={2})
    """

    def __init__(
        self,
        *,
        root: Path,
        stage: str,
        files: ModelFiles,
        dtype: torch.dtype,
        ledger: WeightsLedger | None = None,
        sha256_until: float = -1,
        life: LifeSigns = UNWATCHED,
    ) -> None:
        """A `ledger` lets announced versions be recognised without the synchronizer.

        Versions up to `sha256_until` get both roots: they are compared with those of release 0.1.
        """
        self._sha256_until = sha256_until
        self.life = life
        self._root = root
        self._stage = stage
        self._files = files
        self.dtype = dtype
        self._ledger = ledger
        self._published: list[WeightsOnDisk] = []
        self._base: WeightsOnDisk | None = None
        self._num_on_base = 0

    def load_announced(self, published: Iterable[WeightsOnDisk], incarnation: int) -> None:
        """Adopts the announced versions, and removes other leftovers of earlier incarnations."""
        self._published = sorted(p for p in published if p.path.parent == self._root)
        known = {weights.path.name for weights in self._published}
        remove_leftovers(self._root, kept=known, incarnation=incarnation)
        self.record_announced()

    @property
    def published(self) -> tuple[WeightsOnDisk, ...]:
        """The versions that are there, in order."""
        return tuple(self._published)

    def record_announced(self) -> None:
        """Records all versions in the ledger; called once the newest one is announced."""
        if self._ledger is not None:
            self._ledger.write(
                LedgerEntry(
                    directory=weights.path.name,
                    version=weights.version,
                    incarnation=weights.incarnation,
                    manifest_sha256=weights.manifest_sha256.hex(),
                    weights_sha256=weights.weights_sha256.hex(),
                    weights_blake3=weights.weights_blake3.hex(),
                )
                for weights in self._published
            )

    def write(self, weights: WeightTensors, *, version: int, incarnation: int) -> WeightsOnDisk:
        """Writes a complete Hugging Face directory by this process alone."""
        name = WeightsName(version, incarnation)
        self.create_directory(name)
        part = self.new_part(name, ALONE)
        part.write_tensors(weights.items())
        return self.seal_files(name, part.finish_files(), b"")

    def new_part(self, name: WeightsName, ranks: Ranks) -> DealtPart:
        """Returns a rank's part of a version, whose directory the first rank has created."""
        hashes: tuple[HashName, ...] = ("blake3",)
        if name.version <= self._sha256_until:
            hashes = ("sha256", *hashes)
        return DealtPart(
            self._temporary(name), ranks, dtype=self.dtype, hashes=hashes, life=self.life
        )

    def next_base(self, incarnation: int) -> WeightsOnDisk | None:
        """Returns the whole version that the next one may be stored as the difference to.

        None for weights in single precision, whose bits all change, and for each eighth version.
        """
        own = [w for w in self._published if w.incarnation == incarnation]
        base = max((w for w in own if w.is_whole), default=None)
        if base is None or self.dtype.itemsize > 2:
            return None
        self._num_on_base = self._num_on_base + 1 if self._base == base else 1
        self._base = base
        return base if self._num_on_base < WHOLE_EVERY else None

    def seal_files(
        self,
        name: WeightsName,
        files: tuple[WeightsFile, ...],
        lineage: bytes,
        base: Path | None = None,
    ) -> WeightsOnDisk:
        """Completes a Hugging Face directory of all ranks' files, and renames it.

        Some of the files may be differences to those of the `base`.
        """
        temporary = self._temporary(name)
        if base is not None and any(file.is_difference for file in files):
            self._describe_delta(temporary, files, base)
        if lineage:
            write_lineage(temporary, lineage)
        described = {file.name: file.description for file in name_files(temporary, files)}
        durable = self._files.link_into(temporary)
        return self._seal(temporary, name, roots_of_files(files), durable, described)

    def _describe_delta(self, directory: Path, files: tuple[WeightsFile, ...], base: Path) -> None:
        version, incarnation = base_of(base)
        record = DeltaRecord(
            base_version=version,
            base_incarnation=incarnation,
            num_bytes=sum(file.num_bytes for file in files),
            tensors=tuple(tensor for file in files for tensor in file.tensors),
        )
        (directory / DELTA_NAME).write_text(record.model_dump_json())

    def write_model(self, learner: StageLearner, directory: Path, ranks: Ranks) -> None:
        """Writes a Hugging Face directory that is no version, without a manifest. Collective."""
        if ranks.is_first:
            directory.mkdir()
        ranks.barrier()
        part = DealtPart(directory, ranks, dtype=self.dtype, life=self.life)
        if (split := learner.split_weights()) is not None:
            part.write_split(split)
        else:
            part.write_tensors(learner.weights())
        files = gather_files(part.finish_files(), ranks)
        if ranks.is_first:
            name_files(directory, files)
            self._files.link_into(directory)

    def write_again(
        self, damaged: WeightsOnDisk, files: tuple[WeightsFile, ...] | None
    ) -> WeightsOnDisk | None:
        """Writes a damaged version under a new path: from another incarnation's intact copy of the
        same weights, else of `files` that the ranks wrote for its next copy.

        Returns None if neither has these weights.
        """
        name = next_copy(damaged)
        others = [w for w in self._published if same_weights(w, damaged)]
        for other in sorted(others, reverse=True):
            is_other = other.path != damaged.path
            if is_other and (linked := self._link_intact(other, name)) is not None:
                return linked
        if files is None or not same_weights(roots_of_files(files), damaged):
            remove_tree(self._temporary(name))
            return None
        own = (w.lineage_sha256 for w in self._published if w.path == damaged.path)
        return self.seal_files(name, files, next(own, b""))

    def discard(self, damaged: WeightsOnDisk) -> None:
        """Deletes a damaged version, which was replaced or is lost."""
        self._published = [weights for weights in self._published if weights.path != damaged.path]
        self.record_announced()
        remove_tree(damaged.path)

    def republish(self, version: int, incarnation: int) -> WeightsOnDisk | None:
        """Publishes an earlier incarnation's weights under this incarnation's name.

        Returns None when no intact copy is left.
        """
        for old in sorted(self._published, reverse=True):
            if old.version != version:
                continue
            linked = self._link_intact(old, WeightsName(version, incarnation))
            if linked is not None:
                return linked
        return None

    def _link_intact(self, old: WeightsOnDisk, name: WeightsName) -> WeightsOnDisk | None:
        """Links an earlier version's files under another name; None if they are damaged."""
        try:
            manifest = verify(old.path, old.manifest_sha256, life=self.life)
        except ManifestError as error:
            logger.warning("published weights are damaged", extra={"reason": str(error)})
            return None
        temporary = self.create_directory(name)
        if not old.is_whole:
            return self._apply(old, name)
        for file in manifest.files:
            link_or_copy(old.path / file, temporary / file)
        roots = WeightsRoots(
            old.weights_sha256, old.weights_blake3 or _root_in(temporary).weights_blake3
        )
        return self._seal(temporary, name, roots, frozenset(manifest.files))

    def make_whole(self, delta: WeightsOnDisk) -> WeightsOnDisk | None:
        """Writes a version again with whole files; None if it or its base is damaged."""
        return self._link_intact(delta, next_copy(delta))

    def _apply(self, delta: WeightsOnDisk, name: WeightsName) -> WeightsOnDisk | None:
        """Completes a directory with the whole files of a delta; None if its base is damaged."""
        temporary = self._temporary(name)
        try:
            apply_delta(delta.path, temporary)
            check_applied(delta.path, temporary, delta)
        except ManifestError as error:
            logger.warning("published weights are damaged", extra={"reason": str(error)})
            remove_tree(temporary)
            return None
        roots = WeightsRoots(delta.weights_sha256, delta.weights_blake3)
        return self._seal(temporary, name, roots, frozenset())

    def _temporary(self, name: WeightsName) -> Path:
        return self._root / f"{name.directory}{TEMPORARY_SUFFIX}"

    def create_directory(self, name: WeightsName) -> Path:
        """Creates the directory that the ranks write their files of a version into."""
        temporary = self._temporary(name)
        remove_tree(temporary)
        temporary.mkdir()
        return temporary

    def _seal(
        self,
        temporary: Path,
        name: WeightsName,
        roots: WeightsRoots,
        durable: frozenset[str],
        described: Mapping[str, ManifestFile] | None = None,
    ) -> WeightsOnDisk:
        head = ManifestHead(
            kind="weights",
            stage=self._stage,
            step=name.version,
            incarnation=name.incarnation,
            weights_sha256=roots.weights_sha256.hex(),
            weights_blake3=roots.weights_blake3.hex(),
        )
        lineage = read_lineage(temporary)
        manifest = seal(temporary, head, durable, described or {}, life=self.life)
        final = temporary.with_suffix("")
        remove_tree(final)
        move_into_place(temporary, final)
        weights = WeightsOnDisk(
            version=name.version,
            incarnation=name.incarnation,
            path=final,
            manifest_sha256=manifest,
            weights_sha256=roots.weights_sha256,
            weights_blake3=roots.weights_blake3,
            parent=self._parent_of(name.version),
            copy=name.copy,
            lineage_sha256=lineage,
            base_version=read_record(final).base_version if is_delta(final) else None,
        )
        self._published.append(weights)
        return weights

    def to_published_dtype(
        self, tensors: Iterable[tuple[str, torch.Tensor]], *, copied: bool = False
    ) -> WeightTensors:
        """Converts to the published dtype; unless copied, float32 tensors alias their source."""
        return {name: tensor.to(self.dtype, copy=copied).contiguous() for name, tensor in tensors}

    def _parent_of(self, version: int) -> int:
        """Returns the parent of an earlier incarnation's copy, else the newest older version."""
        copies = [w.parent for w in self._published if w.version == version]
        older = [w.version for w in self._published if w.version < version]
        return max(copies or older, default=NO_PARENT)

    def prune(self, pinned: set[int]) -> list[WeightsOnDisk]:
        """Deletes versions that are neither pinned nor among the newest; returns the deleted.

        Bases of kept versions stay too.
        """
        ordered = sorted(self._published, reverse=True)
        kept = ordered[:MIN_KEPT_VERSIONS]
        kept += [w for w in ordered[MIN_KEPT_VERSIONS:] if w.version in pinned]
        bases = {(w.base_version, w.incarnation) for w in kept if not w.is_whole}
        kept += [w for w in ordered if w not in kept and (w.version, w.incarnation) in bases]
        removed = [weights for weights in ordered if weights not in kept]
        self._published = sorted(kept)
        if removed:
            self.record_announced()
        for weights in removed:
            for path in (weights.path, *scratch_of(weights.path)):
                remove_tree(path)
        return removed


def _root_in(directory: Path) -> WeightsRoots:
    """Returns the root by BLAKE3 of files that release 0.1 wrote."""
    files = sorted(directory.glob("*.safetensors"))
    return roots_of(found for file in files for found in tensor_hashes_in(file, "blake3"))


def next_copy(damaged: WeightsOnDisk) -> WeightsName:
    """Returns the name under which a damaged version is written again."""
    return WeightsName(damaged.version, damaged.incarnation, damaged.copy + 1)


def remove_leftovers(root: Path, *, kept: set[str], incarnation: int) -> None:
    """Removes unannounced files of earlier incarnations; creates the root if missing."""
    root.mkdir(parents=True, exist_ok=True)
    for path in root.iterdir():
        name = path.name.removeprefix(PREFIX).partition("@")[
            0
        ]  # of the version that a scratch belongs to
        if name not in kept and _is_leftover(name, incarnation):
            remove_tree(path)


def remove_tree(path: Path) -> None:
    """Removes a directory, file or symbolic link; never the target of a link."""
    if path.is_symlink() or path.is_file():
        path.unlink(missing_ok=True)
    else:
        shutil.rmtree(path, ignore_errors=True)


def _is_leftover(name: str, incarnation: int) -> bool:
    match = NAME_PATTERN.fullmatch(name.removesuffix(TEMPORARY_SUFFIX))
    is_begun = name.endswith(TEMPORARY_SUFFIX)
    return match is not None and (is_begun or int(match[1]) < incarnation)
