"""Gives out the weights of a run's checkpoints, one after the other, so that they are evaluated."""

import logging
from dataclasses import dataclass
from pathlib import Path

from services.trainer.buffer_client import BufferClient
from services.trainer.incarnation import Incarnation
from services.trainer.learner import Learner
from services.trainer.messages import StageEnded
from services.trainer.publisher import Publisher
from services.trainer.ranks import Ranks
from trinity.api.v1 import buffer_pb2
from trinity.errors import ManifestError, RunFailed
from trinity.manifest import verify

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRun:
    """What a life of the trainer does in mode bench: nothing is trained.

    A life that follows is told only of checkpoints that are not evaluated yet, and of the newest.
    """

    ranks: Ranks
    life: Incarnation
    learner: Learner
    buffer: BufferClient
    publisher: Publisher

    def run(self) -> StageEnded:
        """Publish the versions in their order; the buffer has each evaluated.

        Raises: RunFailed when a checkpoint cannot be read.
        """
        step = 0
        for one in sorted(self.life.offered, key=lambda one: one.step):
            step = one.step
            if one.path:
                self._check(one)
                self.learner.load(Path(one.path))
            self.publisher.publish(self.learner, step)
            logger.info("a checkpoint is out for evaluation", extra={"version": step})
        if self.ranks.is_first:
            self.buffer.finish_training(step, self.life.number)
            self.publisher.finish()
        return StageEnded(outcome="finished")

    def _check(self, one: buffer_pb2.Checkpoint) -> None:
        """Every rank reads all of it: a file that is wrong for one of them is wrong for all."""
        try:
            manifest = verify(Path(one.path), one.manifest_sha256)
        except ManifestError as error:
            raise RunFailed(f"the checkpoint of step {one.step} is damaged: {error}") from error
        if manifest.num_ranks != self.ranks.num_ranks:
            raise RunFailed(
                f"the checkpoint of step {one.step} is split over {manifest.num_ranks} ranks, "
                f"there are {self.ranks.num_ranks}: give `trainer.rank_num: {manifest.num_ranks}`"
            )
