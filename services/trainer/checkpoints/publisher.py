"""Publishes the weights of a stage: as files, and for transfer from memory."""

import logging
import threading
from dataclasses import replace

from services.trainer.checkpoints.damage import DamagedWeights, DamageWatch
from services.trainer.checkpoints.weights import WeightsStore, WeightTensors
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
        server: TransferServer | None = None,
        damage: DamageWatch | None = None,
    ) -> None:
        """Copies each version if there is a `server`, which also sends it from memory.

        With `damage`, on the first rank, damaged versions are written again.
        """
        self._store = store
        self._buffer = buffer
        self._synchronizer = synchronizer
        self._ranks = ranks
        self._incarnation = incarnation
        self._server = server
        self._damage = damage
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
                tensors, copied=copied or self._server is not None
            )
        consume(tensors)
        return None

    def write_and_announce(self, tensors: WeightTensors | None, version: int) -> None:
        """Writes and announces what was collected; does nothing on other ranks than the first."""
        if tensors is None:
            return
        weights = self._store.write(tensors, version=version, incarnation=self._incarnation)
        if self._server is not None:
            weights = replace(weights, offer=self._server.offer_version(tensors))
        self._announce(weights)

    def republish(self, version: int) -> bool:
        """Publishes an earlier life's copy of a version; False when none is intact. Collective."""
        adopted = None
        if self._ranks.is_first:
            adopted = self._store.republish(version, self._incarnation)
        if adopted is not None:
            self._announce(adopted)
        return self._ranks.broadcast_ints([adopted is not None]) == [1]

    def replace_damaged(self, learner: StageLearner, step: int) -> bool:
        """Writes damaged versions again under other paths; declares lost what nothing can replace.

        `step` is that of the learner's weights. Returns true, on all ranks, if the newest version
        is lost, so that newer weights are needed. Collective.
        """
        damaged = self._damage.take_damaged() if self._damage is not None else []
        (gathers,) = self._ranks.broadcast_ints([any(self._is_held(d, step) for d in damaged)])
        tensors = self.gather_weights(learner) if gathers else None
        is_newest_lost = False
        for found in damaged:
            held = tensors if self._is_held(found, step) else None
            if not self._replace(found, held):
                is_newest_lost |= self._is_newest(found.weights)
        return self._ranks.broadcast_ints([is_newest_lost]) == [1]

    def _is_held(self, damaged: DamagedWeights, step: int) -> bool:
        """Returns True if the learner's weights are those of the version."""
        weights = damaged.weights
        return (weights.version, weights.incarnation) == (step, self._incarnation)

    def _is_newest(self, weights: WeightsOnDisk) -> bool:
        return self.newest is None or weights.version >= self.newest.version

    def _replace(self, damaged: DamagedWeights, tensors: WeightTensors | None) -> bool:
        """Replaces one version; false if it is lost."""
        old = damaged.weights
        again = None
        if old.incarnation == self._incarnation:  # earlier ones have no say any more
            again = self._store.write_again(old, tensors)
        if again is None:
            logger.error("published weights are lost", extra={"reason": damaged.damage})
            self._synchronizer.retire([old], damaged.damage)
            self._store.discard(old)
            return False
        self._pinned_by_members = self._synchronizer.publish(again)
        if self.newest is not None and self.newest.version == again.version:
            self.newest = again
        self._store.discard(old)
        logger.warning(
            "damaged weights were written again",
            extra={"version": old.version, "path": str(again.path)},
        )
        return True

    def _announce(self, weights: WeightsOnDisk) -> None:
        self._pinned_by_members = self._synchronizer.publish(weights)
        self.newest = weights
        self._store.record_announced()
        self.set_evaluation_pins(self._buffer.record_version(weights))

    def current_hash(self, learner: StageLearner) -> bytes:
        """Hashes the weights as they would be published now, on all ranks: to their root, or as
        the earlier release did that published before. Collective.
        """
        return hash_on_rank_0(
            learner.weights(),
            lambda tensors: self._store.hashes_of(self._store.to_published_dtype(tensors)).sha256,
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
