"""Publishes the weights of a stage: as files, and for transfer from memory."""

import logging
import threading
from dataclasses import replace

from services.trainer.checkpoints.weights import WeightsStore, WeightTensors, weights_hash
from services.trainer.clients import TrainerBufferClient, TrainerSynchronizerClient
from services.trainer.collectives import Ranks, consume, hash_on_rank_0
from services.trainer.types import StageLearner, WeightsOnDisk
from trinity.weights.offer import OfferAddress, TransferTimeouts
from trinity.weights.sending import WeightsSender

logger = logging.getLogger(__name__)


CLOSE_SECONDS = 5.0
"""Explorers that have not received them by then load the files."""


class TransferServer:
    """Offers one version at a time; a newer one replaces the previous.

    Invariant: what is offered does not change, so it is a copy of the weights in training.

        server = TransferServer(host="127.0.0.1", name="weights", limits=limits)
        announced = server.offer_version(weights)
        server.close_server()
    """

    def __init__(self, *, host: str, name: str, limits: TransferTimeouts) -> None:
        self._host = host
        self._name = name
        self._limits = limits
        self._transfer_lock = threading.Lock()
        self._newest: WeightsSender | None = None

    def offer_version(self, tensors: WeightTensors) -> OfferAddress | None:
        """Offers these weights; returns None where that fails and explorers must load the files."""
        self._withdraw_current()
        try:
            self._newest = WeightsSender(
                tensors,
                host=self._host,
                name=self._name,
                limits=self._limits,
                transfer_lock=self._transfer_lock,
            )
        except (OSError, RuntimeError) as error:
            logger.warning(
                "weights are not offered, explorers load the files",
                extra={"host": self._host, "reason": str(error)},
            )
            return None
        return self._newest.offer

    def close_server(self) -> None:
        """Stops offering, after a short wait for a transfer under way."""
        self._withdraw_current(CLOSE_SECONDS)

    def _withdraw_current(self, wait_seconds: float = 0.0) -> None:
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
        self.write_and_announce(self.gather_weights(learner), version)

    def gather_weights(
        self, learner: StageLearner, *, copied: bool = False
    ) -> WeightTensors | None:
        """Returns the weights to publish on the first rank, None elsewhere. Collective.

        Unless they are `copied`, they change with the next train step.
        """
        tensors = learner.weights()
        if self._ranks.is_first:
            return self._store.to_published_dtype(
                tensors, copied=copied or self._offers is not None
            )
        consume(tensors)
        return None

    def write_and_announce(self, tensors: WeightTensors | None, version: int) -> None:
        """Writes and announces what was collected; does nothing on other ranks than the first."""
        if tensors is None:
            return
        weights = self._store.write(tensors, version=version, incarnation=self._incarnation)
        if self._offers is not None:
            weights = replace(weights, offer=self._offers.offer_version(tensors))
        self._announce(weights)

    def republish(self, version: int) -> bool:
        """Publishes an earlier life's copy of a version; False when none is intact. Collective."""
        adopted = None
        if self._ranks.is_first:
            adopted = self._store.republish(version, self._incarnation)
        if adopted is not None:
            self._announce(adopted)
        return self._ranks.broadcast_ints([adopted is not None]) == [1]

    def _announce(self, weights: WeightsOnDisk) -> None:
        self._pinned_by_members = self._synchronizer.publish(weights)
        self.newest = weights
        self.set_evaluation_pins(self._buffer.record_version(weights))

    def current_hash(self, learner: StageLearner) -> bytes:
        """Hashes the weights as they would be published now, on all ranks. Collective."""
        return hash_on_rank_0(
            learner.weights(),
            lambda tensors: weights_hash(self._store.to_published_dtype(tensors)),
            self._ranks,
        )

    def set_evaluation_pins(self, pinned: set[int]) -> None:
        """Records the versions that open evaluations need; deletes those no longer needed."""
        self._pinned_by_evaluations = pinned
        removed = self._store.prune(self._pinned_by_members | self._pinned_by_evaluations)
        if removed:
            self._synchronizer.retire(removed)

    def finish_stage(self) -> None:
        """Ends the stage with the newest version."""
        assert self.newest is not None
        self._synchronizer.finish_role(self.newest)
