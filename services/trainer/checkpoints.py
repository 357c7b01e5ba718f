"""Full checkpoints: directories `step-<n>-<incarnation>`, valid once committed to the buffer."""

import shutil
from collections.abc import Iterable
from pathlib import Path

from services.trainer.adapter_base import record_base, recorded_base
from services.trainer.checkpoint_types import WrittenCheckpoint
from services.trainer.directories import TEMPORARY_SUFFIX, remove_leftovers
from services.trainer.gathered import hash_on_all
from services.trainer.ranks import Ranks
from services.trainer.stage_learner import StageLearner
from services.trainer.weights import weights_hash
from trinity.errors import UserError
from trinity.manifest import MANIFEST_NAME, Manifest, ManifestHead, move_into_place, seal


class CheckpointStore:
    """The checkpoints of one stage.

    A kill at any moment leaves either a complete directory under its final name or one that `clean`
    removes.
    """

    def __init__(self, *, root: Path, stage: str, ranks: Ranks) -> None:
        self._root = root
        self._stage = stage
        self._ranks = ranks

    def clean(self, committed: Iterable[Path], incarnation: int) -> None:
        """Removes what earlier incarnations wrote and never committed; called by the first rank."""
        kept = {path.name for path in committed}
        remove_leftovers(self._root, kept=kept, incarnation=incarnation)

    def write(self, learner: StageLearner, *, step: int, incarnation: int) -> WrittenCheckpoint:
        """Writes all ranks' parts, then the first rank seals them. Collective."""
        final = self._root / f"step-{step}-{incarnation}"
        temporary = final.with_suffix(TEMPORARY_SUFFIX)
        if self._ranks.is_first:
            for directory in (final, temporary):
                shutil.rmtree(directory, ignore_errors=True)
            temporary.mkdir(parents=True)
        self._ranks.barrier()
        learner.save(temporary, step)
        digest = self._hash_of(learner)
        base = learner.adapter_base()
        self._ranks.barrier()
        manifest = b""
        if self._ranks.is_first:
            if base is not None:
                record_base(temporary, base)
            manifest = seal(temporary, self._head(step, incarnation, digest))
            move_into_place(temporary, final)
        return WrittenCheckpoint(
            step=step, incarnation=incarnation, path=final, manifest_sha256=manifest
        )

    def check_base(self, learner: StageLearner, checkpoint: Path) -> None:
        """Checks that a checkpoint's adapter, just loaded, has the base it was trained on.

        Where the recorded hash is missing or differs, the merged weights decide, bit for bit.

        Raises: UserError where the base model, or the adapter's scale, is another one. Collective.
        """
        is_same = recorded_base(checkpoint) == learner.adapter_base()
        if self._ranks.from_first([is_same]) == [1]:
            return
        written = Manifest.model_validate_json((checkpoint / MANIFEST_NAME).read_bytes())
        if self._hash_of(learner).hex() != written.weights_sha256:
            raise UserError(
                f"the adapter of the checkpoint {checkpoint} was trained on another model or with "
                "another scale: give `model.model_path`, `model.lora_configs` and "
                "`trainer.resume_from_path` as they were then"
            )

    def remove(self, paths: Iterable[Path]) -> None:
        """Deletes checkpoints that are no longer needed."""
        for path in paths:
            if path.parent == self._root:
                shutil.rmtree(path, ignore_errors=True)

    def _hash_of(self, learner: StageLearner) -> bytes:
        return hash_on_all(
            learner.weights(), lambda tensors: weights_hash(dict(tensors)), self._ranks
        )

    def _head(self, step: int, incarnation: int, digest: bytes) -> ManifestHead:
        return ManifestHead(
            kind="checkpoint",
            stage=self._stage,
            step=step,
            incarnation=incarnation,
            weights_sha256=digest.hex(),
            num_ranks=self._ranks.num_ranks,
        )
