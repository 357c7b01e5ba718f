"""The resume point of a new life of the trainer: its checkpoint, and the steps it repeats."""

import logging
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from services.trainer.checkpoints.set_aside import LostFiles
from services.trainer.clients import TrainerBufferClient
from services.trainer.collectives import Ranks
from services.trainer.types import WeightsOnDisk
from trinity.api.v1 import buffer_pb2
from trinity.config.plan.stage_plan import StagePlan
from trinity.errors import ManifestError
from trinity.runtime.life import UNWATCHED, LifeSigns
from trinity.runtime.origin import NOTHING_BEFORE
from trinity.weights.identity import WeightsRoots
from trinity.weights.manifest import verify

logger = logging.getLogger(__name__)

NO_CHECKPOINT = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Incarnation:
    """One life of the trainer in a stage, the same on all ranks."""

    number: int
    checkpoint: Path | None
    """The checkpoint to load; None begins with the stage's starting weights."""
    step: int
    """The train step after which the checkpoint was taken."""
    recorded_step: int
    """Steps up to this one are trained again from their recorded batches."""
    last_published_version: int
    """The newest version that an earlier life recorded; -1 when there is none."""
    last_published: WeightsRoots
    """Its identity."""
    finished_step: int
    """The step at which an earlier life finished the training; 0 when none did."""
    committed: tuple[Path, ...]
    """All committed checkpoints."""
    restored: int = 0
    """The incarnation that the newest restore of the database began; 0 without any."""
    lineage_sha256: bytes = NOTHING_BEFORE
    """Digest of the batches that its start was trained on."""
    checkpoints_to_evaluate: tuple[buffer_pb2.Checkpoint, ...] = ()
    """The same as the buffer's messages; in mode bench those to evaluate, where an empty path
    means the starting weights."""

    def version_to_republish(self, sync_interval: int) -> int:
        """Returns the newest version due by the recorded steps; explorers continue from it."""
        return self.recorded_step // sync_interval * sync_interval

    def sha256_until(self, plan: StagePlan) -> float:
        """Returns the newest version, if release 0.1 published it; -1 otherwise.

        Batches that are trained again may be of a run of release 0.1: then all versions count.
        """
        if plan.stored_batches is not None:
            return math.inf
        return -1 if self.last_published.weights_blake3 else self.last_published_version

    def set_lost_files_aside(
        self, stage: Path, announced: Callable[[], Iterable[WeightsOnDisk]]
    ) -> None:
        """Moves files that the database has lost out of the way of this life."""
        lost = LostFiles(stage=stage, incarnation=self.number, restored=self.restored)
        lost.move_unknown(self.committed, announced)

    def unread_checkpoints(self) -> str:
        """Returns the end of an error of a life that could read no checkpoint; else nothing."""
        if self.checkpoint is not None or not self.committed:
            return ""
        count, newest = len(self.committed), self.committed[0]
        return (
            f"; and no checkpoint can be read (of {count} on record, the newest is {newest}): put "
            "one back, with all its files, and start again"
        )


def begin_incarnation(
    buffer: TrainerBufferClient,
    trainer_id: str,
    ranks: Ranks,
    *,
    resumes: bool = True,
    latest_start: Callable[[int], int],
    life: LifeSigns = UNWATCHED,
) -> Incarnation:
    """Fences off the previous life and chooses the newest checkpoint that verifies. Collective.

    Those after the latest start for the recorded step come last. Without `resumes`, none is chosen.
    """
    message, chosen = b"", NO_CHECKPOINT
    if ranks.is_first:
        answer = buffer.begin_incarnation(trainer_id)
        message = answer.SerializeToString()
        if resumes:
            last, rows = latest_start(answer.recorded_step), answer.checkpoints
            order = sorted(range(len(rows)), key=lambda index: rows[index].step > last)
            found = _newest_intact([rows[index] for index in order], ranks.num_ranks, life)
            chosen = order[found] if found != NO_CHECKPOINT else NO_CHECKPOINT
    message = ranks.broadcast_bytes(message)
    (chosen,) = ranks.broadcast_ints([chosen])
    return _incarnation(buffer_pb2.BeginIncarnationResponse.FromString(message), chosen)


def latest_start(
    plan: StagePlan, find_version: Callable[[int], WeightsOnDisk | None], recorded_step: int
) -> int:
    """Returns the last step after which a life may begin and the run end in the same weights.

    Without offset, explorers need the version that is due: its files, or steps up to it.
    """
    sync = plan.config.synchronizer
    due = recorded_step // sync.sync_interval * sync.sync_interval
    is_exact = plan.needs_rollout and sync.sync_style == "fixed" and sync.sync_offset == 0
    is_needed = is_exact and due < recorded_step
    return due if is_needed and find_version(due) is None else recorded_step


def _incarnation(answer: buffer_pb2.BeginIncarnationResponse, chosen: int) -> Incarnation:
    checkpoint = answer.checkpoints[chosen] if chosen != NO_CHECKPOINT else None
    known = answer.newest_version
    roots = WeightsRoots(known.weights_sha256, known.weights_blake3)
    return Incarnation(
        number=answer.incarnation,
        checkpoint=Path(checkpoint.path) if checkpoint else None,
        step=checkpoint.step if checkpoint else 0,
        recorded_step=answer.recorded_step,
        last_published_version=known.version if roots != WeightsRoots() else -1,
        last_published=roots,
        finished_step=answer.finished_step,
        committed=tuple(Path(row.path) for row in answer.checkpoints),
        restored=answer.restored,
        lineage_sha256=(checkpoint and checkpoint.lineage_sha256) or NOTHING_BEFORE,
        checkpoints_to_evaluate=tuple(answer.checkpoints),
    )


def _newest_intact(
    checkpoints: Iterable[buffer_pb2.Checkpoint], num_ranks: int, life: LifeSigns = UNWATCHED
) -> int:
    """Returns the index of the first checkpoint that verifies."""
    for index, row in enumerate(checkpoints):
        try:
            manifest = verify(Path(row.path), row.manifest_sha256, life=life)
        except ManifestError as error:
            logger.error("skipped a checkpoint", extra={"reason": str(error)})
            continue
        if manifest.num_ranks != num_ranks:
            logger.warning(
                "other ranks wrote the checkpoint: steps agree within rounding from here on",
                extra={"path": row.path, "before": manifest.num_ranks, "now": num_ranks},
            )
        return index
    return NO_CHECKPOINT
