"""Publishes the weights of a run's checkpoints, one after the other, for evaluation."""

import logging
from dataclasses import dataclass
from pathlib import Path

from services.trainer.buffer_client import BufferClient
from services.trainer.incarnation import Incarnation
from services.trainer.messages import StageEnded
from services.trainer.publisher import Publisher
from services.trainer.ranks import Ranks
from services.trainer.stage_learner import StageLearner
from trinity.api.v1 import buffer_pb2
from trinity.errors import ManifestError, RunFailed
from trinity.manifest import verify

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRun:
    """One life of the trainer in mode bench: nothing is trained.

    A later life is told only of checkpoints that are not evaluated yet, and of the newest.
    """

    ranks: Ranks
    life: Incarnation
    learner: StageLearner
    buffer: BufferClient
    publisher: Publisher

    def run(self) -> StageEnded:
        """Publishes the versions in order; the buffer has each evaluated.

        Raises: RunFailed when a checkpoint cannot be read.
        """
        step = 0
        for checkpoint in sorted(self.life.offered, key=lambda checkpoint: checkpoint.step):
            step = checkpoint.step
            if checkpoint.path:
                self._check(checkpoint)
                self.learner.load(Path(checkpoint.path))
            self.publisher.publish(self.learner, step)
            logger.info("published a checkpoint for evaluation", extra={"version": step})
        if self.ranks.is_first:
            self.buffer.finish_training(step, self.life.number)
            self.publisher.finish()
        return StageEnded(outcome="finished")

    def _check(self, checkpoint: buffer_pb2.Checkpoint) -> None:
        """Verifies the whole checkpoint on every rank: damage in any file fails all ranks."""
        try:
            manifest = verify(Path(checkpoint.path), checkpoint.manifest_sha256)
        except ManifestError as error:
            raise RunFailed(
                f"the checkpoint of step {checkpoint.step} is damaged: {error}"
            ) from error
        if manifest.num_ranks != self.ranks.num_ranks:
            raise RunFailed(
                f"the checkpoint of step {checkpoint.step} is split over {manifest.num_ranks} "
                f"ranks, there are {self.ranks.num_ranks}: give "
                f"`trainer.rank_num: {manifest.num_ranks}`"
            )
