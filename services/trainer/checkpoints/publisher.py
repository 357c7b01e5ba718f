"""Offers the newest weights for transfer from memory, after their files are written."""

import logging
import threading
from dataclasses import replace

from services.trainer.checkpoints.weights import WeightsStore, WeightTensors, weights_hash
from services.trainer.clients import TrainerBufferClient, TrainerSynchronizerClient
from services.trainer.collectives import Ranks, consume, hash_on_rank_0
from services.trainer.types import StageLearner, WeightsOnDisk
from trinity.weights.offer import Limits, Offer
from trinity.weights.sending import WeightsOffer

logger = logging.getLogger(__name__)


CLOSE_SECONDS = 5.0
"""Explorers that have not received them by then load the files."""


class TransferServer:
    """Offers one version at a time; a newer one replaces the previous.

    Invariant: what is offered does not change, so it is a copy of the weights in training.

        offers = TransferServer(host="127.0.0.1", name="weights", limits=limits)
        announced = offers.begin(exported)
        offers.close()
    """

    def __init__(self, *, host: str, name: str, limits: Limits) -> None:
        self._host = host
        self._name = name
        self._limits = limits
        self._turn = threading.Lock()
        self._newest: WeightsOffer | None = None

    def begin(self, exported: WeightTensors) -> Offer | None:
        """Offers these weights; returns None where that fails and explorers must load the files."""
        self._withdraw()
        try:
            self._newest = WeightsOffer(
                exported,
                host=self._host,
                name=self._name,
                limits=self._limits,
                turn=self._turn,
            )
        except (OSError, RuntimeError) as error:
            logger.warning(
                "weights are not offered, explorers load the files",
                extra={"host": self._host, "reason": str(error)},
            )
            return None
        return self._newest.offer

    def close(self) -> None:
        """Stops offering, after a short wait for a transfer under way."""
        self._withdraw(CLOSE_SECONDS)

    def _withdraw(self, wait_seconds: float = 0.0) -> None:
        newest, self._newest = self._newest, None
        if newest is not None:
            newest.withdraw(wait_seconds)


class WeightsPublisher:
    """Publishes versions of one incarnation and deletes those that are no longer needed."""

    def __init__(
        self,
        *,
        store: WeightsStore,
        buffer: TrainerBufferClient,
        synchronizer: TrainerSynchronizerClient,
        ranks: Ranks,
        incarnation: int,
        offers: TransferServer | None = None,
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
        self.newest: WeightsOnDisk | None = None
        """The last version that this incarnation published; known to the first rank alone."""

    def publish(self, learner: StageLearner, version: int) -> None:
        """Gathers the weights of all ranks; the first writes and announces them. Collective."""
        self.announce(self.collect(learner), version)

    def collect(self, learner: StageLearner, *, copied: bool = False) -> WeightTensors | None:
        """Returns the weights to publish on the first rank, None elsewhere. Collective.

        Unless they are `copied`, they change with the next train step.
        """
        tensors = learner.weights()
        if self._ranks.is_first:
            return self._store.as_exported(tensors, copied=copied or self._offers is not None)
        consume(tensors)
        return None

    def announce(self, exported: WeightTensors | None, version: int) -> None:
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

    def _announce(self, weights: WeightsOnDisk) -> None:
        self._pinned_by_members = self._synchronizer.publish(weights)
        self.newest = weights
        self.note_evaluations(self._buffer.record_version(weights))

    def hash_now(self, learner: StageLearner) -> bytes:
        """Hashes the weights as they would be published now, on all ranks. Collective."""
        return hash_on_rank_0(
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
