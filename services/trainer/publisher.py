"""Publishing weights: files first, then the synchronizer's word, then the buffer's leases."""

from dataclasses import replace

from services.trainer.buffer_client import BufferClient
from services.trainer.gathered import hash_on_all, take_part
from services.trainer.learner import Learner
from services.trainer.offers import Offers
from services.trainer.ranks import Ranks
from services.trainer.synchronizer_client import SynchronizerClient
from services.trainer.weights import Exported, PublishedWeights, WeightsStore, weights_hash


class Publisher:
    """Publishes versions of one incarnation and deletes those nobody needs any more."""

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
        """With `offers` each version is given from memory too, which takes a copy of it."""
        self._store = store
        self._buffer = buffer
        self._synchronizer = synchronizer
        self._ranks = ranks
        self._incarnation = incarnation
        self._offers = offers
        self._pinned_by_members: set[int] = set()
        self._pinned_by_evaluations: set[int] = set()
        self.newest: PublishedWeights | None = None
        """What this incarnation published last; only the first rank knows."""

    def publish(self, learner: Learner, version: int) -> None:
        """Every rank gives its part of the weights, the first writes and announces. Collective."""
        self.announce(self.collect(learner), version)

    def collect(self, learner: Learner, *, copied: bool = False) -> Exported | None:
        """The weights as they are published, on the first rank; None elsewhere. Collective.

        Unless they are `copied`, they change with the next train step.
        """
        tensors = learner.weights()
        if self._ranks.is_first:
            return self._store.as_exported(tensors, copied=copied or self._offers is not None)
        take_part(tensors)
        return None

    def announce(self, exported: Exported | None, version: int) -> None:
        """Write what was collected and make it known; elsewhere than on the first rank nothing."""
        if exported is None:
            return
        weights = self._store.write(exported, version=version, incarnation=self._incarnation)
        if self._offers is not None:
            weights = replace(weights, offer=self._offers.begin(exported))
        self._announce(weights)

    def adopt(self, version: int) -> bool:
        """Publish an earlier life's copy of a version; False when none is intact. Collective."""
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

    def hash_now(self, learner: Learner) -> bytes:
        """Of the weights as they would be published now, on all ranks. Collective."""
        return hash_on_all(
            learner.weights(),
            lambda tensors: weights_hash(self._store.as_exported(tensors)),
            self._ranks,
        )

    def note_evaluations(self, pinned: set[int]) -> None:
        """Versions that open evaluations need; what nobody needs is deleted."""
        self._pinned_by_evaluations = pinned
        removed = self._store.prune(self._pinned_by_members | self._pinned_by_evaluations)
        if removed:
            self._synchronizer.retire(removed)

    def finish(self) -> None:
        """The stage ends with the newest version."""
        assert self.newest is not None
        self._synchronizer.finish(self.newest)
