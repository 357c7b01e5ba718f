"""The checkpoints of a stage; those of an adapter hold a hash of the base it was trained on.

Hashing the merged weights would not do: another CPU may round their product differently.
"""

from collections.abc import Iterable
from pathlib import Path

from services.trainer.checkpoints.dealt import root_of_learner
from services.trainer.checkpoints.weights import (
    TEMPORARY_SUFFIX,
    WeightsStore,
    remove_leftovers,
    remove_tree,
)
from services.trainer.collectives import NamedTensors, Ranks
from services.trainer.types import StageLearner, WrittenCheckpoint
from trinity.errors import UserError
from trinity.runtime.life import UNWATCHED, LifeSigns
from trinity.weights.manifest import MANIFEST_NAME, Manifest, ManifestHead, move_into_place, seal
from trinity.weights.tensors import RootDigest

MODEL_FOLDER = "hf_model"
FILE_NAME = "adapter_base.sha256"


class CheckpointStore:
    """The checkpoints of one stage.

    A kill at any moment leaves either a complete directory under its final name or one that
    `remove_uncommitted` removes.
    """

    def __init__(
        self,
        *,
        root: Path,
        stage: str,
        ranks: Ranks,
        models: WeightsStore | None = None,
        life: LifeSigns = UNWATCHED,
    ) -> None:
        """Creates the store; with `models`, checkpoints also have a whole model."""
        self._life = life
        self._models = models
        self._root = root
        self._stage = stage
        self._ranks = ranks

    def remove_uncommitted(self, committed: Iterable[Path], incarnation: int) -> None:
        """Removes uncommitted files of earlier incarnations; called by the first rank."""
        kept = {path.name for path in committed}
        remove_leftovers(self._root, kept=kept, incarnation=incarnation)

    def write(self, learner: StageLearner, *, step: int, incarnation: int) -> WrittenCheckpoint:
        """Writes all ranks' parts, then the first rank seals them. Collective."""
        final = self._root / f"step-{step}-{incarnation}"
        temporary = final.with_suffix(TEMPORARY_SUFFIX)
        if self._ranks.is_first:
            for directory in (final, temporary):
                remove_tree(directory)
            temporary.mkdir(parents=True)
        self._ranks.barrier()
        learner.save(temporary, step)
        if self._models is not None:
            self._models.write_model(learner, temporary / MODEL_FOLDER, self._ranks)
        digest = self._hash_of(learner)
        base = learner.adapter_base()
        self._ranks.barrier()
        manifest = b""
        if self._ranks.is_first:
            manifest = self._seal_as(final, temporary, self._head(step, incarnation, digest), base)
        return WrittenCheckpoint(
            step=step, incarnation=incarnation, path=final, manifest_sha256=manifest
        )

    def check_adapter_base(self, learner: StageLearner, checkpoint: Path) -> None:
        """Checks that a checkpoint's adapter, just loaded, has the base it was trained on.

        Where the recorded hash differs, the root of the merged weights decides.

        Raises: UserError where the base model, or the adapter's scale, is another one. Collective.
        """
        is_same = read_base_hash(checkpoint) == learner.adapter_base()
        if self._ranks.broadcast_ints([is_same]) == [1]:
            return
        written = Manifest.model_validate_json((checkpoint / MANIFEST_NAME).read_bytes())
        if bytes.fromhex(written.weights_sha256) != self._hash_of(learner):
            raise UserError(
                f"the adapter of the checkpoint {checkpoint} was trained on another model or with "
                "another scale: give `model.model_path`, `model.lora_configs` and "
                "`trainer.resume_from_path` as they were then"
            )

    def delete_checkpoints(self, paths: Iterable[Path]) -> None:
        """Deletes checkpoints that are no longer needed."""
        for path in paths:
            if path.parent == self._root:
                remove_tree(path)

    def _hash_of(self, learner: StageLearner) -> bytes:
        return root_of_learner(learner, self._ranks, self._life)

    def _seal_as(
        self, final: Path, temporary: Path, head: ManifestHead, base: bytes | None
    ) -> bytes:
        """Gives a directory its final name once it is whole; returns the hash of its manifest."""
        if base is not None:
            write_base_hash(temporary, base)
        manifest = seal(temporary, head, life=self._life)
        move_into_place(temporary, final)
        return manifest

    def _head(self, step: int, incarnation: int, digest: bytes) -> ManifestHead:
        return ManifestHead(
            kind="checkpoint",
            stage=self._stage,
            step=step,
            incarnation=incarnation,
            weights_sha256=digest.hex(),
            num_ranks=self._ranks.num_ranks,
        )


def base_hash(parts: NamedTensors) -> bytes:
    """Returns the root over the parts; holds one part in memory at a time."""
    digest = RootDigest("sha256")
    for name, tensor in parts:
        digest.add_tensor(name, tensor)
    return digest.roots().weights_sha256


def write_base_hash(checkpoint: Path, digest: bytes) -> None:
    """Writes the hash into a checkpoint; called before the checkpoint is sealed."""
    (checkpoint / FILE_NAME).write_text(digest.hex())


def read_base_hash(checkpoint: Path) -> bytes | None:
    """Reads the hash; None in checkpoints older than this record."""
    file = checkpoint / FILE_NAME
    return bytes.fromhex(file.read_text()) if file.exists() else None
