"""Publishes weights: writes files, announces them to the synchronizer, then to the buffer."""

from dataclasses import replace

from services.trainer.buffer_client import BufferClient
from services.trainer.gathered import hash_on_all, take_part
from services.trainer.offers import Offers
from services.trainer.ranks import Ranks
from services.trainer.stage_learner import StageLearner
from services.trainer.synchronizer_client import SynchronizerClient
from services.trainer.weights import Exported, WeightsStore, weights_hash
from services.trainer.weights_types import PublishedWeights


class Publisher:
    """Publishes versions of one incarnation and deletes those that are no longer needed."""

    def __init__(
        self,
        *,
        store: WeightsStore,
        buffer: BufferClient,
        synchronizer: SynchronizerClient,
        ranks: Ranks,
        incarnation: int,
        offers: Offers | None = None,
    ) -> None:
        """Copies each version if there are `offers`, which also send it from memory."""
        self._store = store
        self._buffer = buffer
        self._synchronizer = synchronizer
        self._ranks = ranks
        self._incarnation = incarnation
        self._offers = offers
        self._pinned_by_members: set[int] = set()
        self._pinned_by_evaluations: set[int] = set()
        self.newest: PublishedWeights | None = None
        """The last version that this incarnation published; known to the first rank alone."""

    def publish(self, learner: StageLearner, version: int) -> None:
        """Gathers the weights of all ranks; the first writes and announces them. Collective."""
        self.announce(self.collect(learner), version)

    def collect(self, learner: StageLearner, *, copied: bool = False) -> Exported | None:
        """Returns the weights to publish on the first rank, None elsewhere. Collective.

        Unless they are `copied`, they change with the next train step.
        """
        tensors = learner.weights()
        if self._ranks.is_first:
            return self._store.as_exported(tensors, copied=copied or self._offers is not None)
        take_part(tensors)
        return None

    def announce(self, exported: Exported | None, version: int) -> None:
        """Writes and announces what was collected; does nothing on other ranks than the first."""
        if exported is None:
            return
        weights = self._store.write(exported, version=version, incarnation=self._incarnation)
        if self._offers is not None:
            weights = replace(weights, offer=self._offers.begin(exported))
        self._announce(weights)

    def adopt(self, version: int) -> bool:
        """Publishes an earlier life's copy of a version; False when none is intact. Collective."""
        adopted = None
        if self._ranks.is_first:
            adopted = self._store.adopt(version, self._incarnation)
        if adopted is not None:
            self._announce(adopted)
        return self._ranks.from_first([adopted is not None]) == [1]

    def _announce(self, weights: PublishedWeights) -> None:
        self._pinned_by_members = self._synchronizer.publish(weights)
        self.newest = weights
        self.note_evaluations(self._buffer.record_version(weights))

    def hash_now(self, learner: StageLearner) -> bytes:
        """Hashes the weights as they would be published now, on all ranks. Collective."""
        return hash_on_all(
            learner.weights(),
            lambda tensors: weights_hash(self._store.as_exported(tensors)),
            self._ranks,
        )

    def note_evaluations(self, pinned: set[int]) -> None:
        """Records the versions that open evaluations need; deletes those no longer needed."""
        self._pinned_by_evaluations = pinned
        removed = self._store.prune(self._pinned_by_members | self._pinned_by_evaluations)
        if removed:
            self._synchronizer.retire(removed)

    def finish(self) -> None:
        """Ends the stage with the newest version."""
        assert self.newest is not None
        self._synchronizer.finish(self.newest)
