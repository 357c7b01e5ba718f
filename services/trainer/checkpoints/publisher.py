"""Publishes the weights of a stage: as files, and for transfer from memory."""

import logging
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from services.trainer.checkpoints.best import BestVersion
from services.trainer.checkpoints.damage import DamagedWeights, DamageWatch
from services.trainer.checkpoints.dealt import (
    DealtPart,
    WeightsFile,
    gather_files,
    root_of_learner,
)
from services.trainer.checkpoints.split import GatherableTensor, gathered_to
from services.trainer.checkpoints.weights import (
    WeightsName,
    WeightsStore,
    WeightTensors,
    next_copy,
)
from services.trainer.clients import KeptVersions, TrainerBufferClient, TrainerSynchronizerClient
from services.trainer.collectives import NamedTensors, Ranks
from services.trainer.types import StageLearner, WeightsOnDisk
from trinity.errors import ManifestError
from trinity.weights.identity import HashName
from trinity.weights.offer import OfferAddress, TransferTimeouts
from trinity.weights.sending import WeightsSender

logger = logging.getLogger(__name__)

CLOSE_SECONDS = 5.0
"""Explorers that have not received them by then load the files."""


class TransferServer:
    """Offers one version at a time; a newer one replaces the previous.

    Invariant: offered weights do not change, so they are a copy of the weights in training.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenWeights:
    """A rank's part of a version, which is not announced yet."""

    name: WeightsName
    part: DealtPart
    lineage: bytes
    """Digest of all batches that it was trained on."""
    whole: WeightTensors | None
    """A copy of all weights, on the first rank where something asks for it."""
    base: Path | None = None
    """A whole version of which it may store the differences alone."""


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
        best: BestVersion | None = None,
    ) -> None:
        """Copies each version if there is a `server`, which also sends it from memory.

        With `damage`, on the first rank, damaged versions are written again.
        """
        self._store = store
        self._buffer = buffer
        self._synchronizer = synchronizer
        self._ranks = ranks
        self._sealing_ranks = ranks.with_own_group()
        self._incarnation = incarnation
        self._server = server
        self._keeps_whole = ranks.broadcast_ints([server is not None]) == [1]
        self._damage = damage
        self._pinned_by_members: set[int] = set()
        self._best = best
        self._pinned_by_buffer: frozenset[int] = frozenset()
        self.newest: WeightsOnDisk | None = None
        """The last version that this incarnation published; known to the first rank alone."""

    def publish(self, learner: StageLearner, version: int, lineage: bytes) -> None:
        """Writes and announces the weights. Collective."""
        self.seal_and_announce(self.write_weights(learner, version, lineage))

    def write_weights(
        self, learner: StageLearner, version: int, lineage: bytes, *, is_last: bool = False
    ) -> WrittenWeights:
        """Writes this rank's part of the weights, which may change after that. Collective.

        It is stored as a difference where that is small; the last version is whole.
        """
        written = self._write(learner, WeightsName(version, self._incarnation), lineage)
        return written if is_last else replace(written, base=self._next_base())

    def _next_base(self) -> Path | None:
        """Returns the first rank's choice. Collective."""
        found = self._store.next_base(self._incarnation) if self._ranks.is_first else None
        if self._ranks.broadcast_ints([found is not None]) == [0]:
            return None
        path = str(found.path) if found is not None else ""
        return Path(self._ranks.broadcast_bytes(path.encode()).decode())

    def _write(
        self, learner: StageLearner, name: WeightsName, lineage: bytes = b""
    ) -> WrittenWeights:
        if self._ranks.is_first:
            self._store.create_directory(name)
        self._ranks.barrier()
        part = self._store.new_part(name, self._ranks)
        if (split := learner.split_weights()) is not None:
            shards = dict(split)
            part.write_split(shards.items())
            gathered = self._gathered_here(shards)
            return WrittenWeights(name=name, part=part, lineage=lineage, whole=gathered)
        whole: WeightTensors | None = {} if self._keeps_whole and self._ranks.is_first else None
        tensors = learner.weights()
        part.write_tensors(tensors if whole is None else self._kept_in(whole, tensors))
        return WrittenWeights(name=name, part=part, lineage=lineage, whole=whole)

    def _gathered_here(self, shards: Mapping[str, GatherableTensor]) -> WeightTensors | None:
        """Returns all weights on the first rank, where something asks for them. Collective."""
        if not self._keeps_whole:
            return None
        whole = dict(gathered_to(0, shards.items(), self._ranks, self._store.dtype))
        return whole if self._ranks.is_first else None

    def _kept_in(
        self, whole: WeightTensors, tensors: NamedTensors
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields the tensors, and keeps a copy of each."""
        for name, tensor in tensors:
            whole |= self._store.to_published_dtype([(name, tensor)], copied=True)
            yield name, tensor

    def seal_and_announce(self, written: WrittenWeights) -> None:
        """Makes this rank's files durable; the first rank completes and announces the checkpoint.

        Collective; may run in another thread, one call at a time.
        """
        files = gather_files(written.part.finish_files(written.base), self._sealing_ranks)
        if not self._ranks.is_first:
            return
        weights = self._store.seal_files(written.name, files, written.lineage, written.base)
        if self._server is not None:
            assert written.whole is not None, "they are kept where there is a server"
            weights = replace(weights, offer=self._server.offer_version(written.whole))
        self._announce(weights)

    def republish(self, version: int) -> bool:
        """Publishes an intact copy of a version by an earlier incarnation; False without one.
        Collective.
        """
        adopted = None
        if self._ranks.is_first:
            adopted = self._store.republish(version, self._incarnation)
        if adopted is not None:
            self._announce(adopted)
        return self._ranks.broadcast_ints([adopted is not None]) == [1]

    @property
    def has_damage(self) -> bool:
        """True on the first rank if a version is damaged and not yet replaced."""
        return self._damage is not None and self._damage.has_damage

    def replace_damaged(self, learner: StageLearner, step: int) -> bool:
        """Rewrites damaged versions under other paths, or declares them lost.

        `step` is that of the learner's weights. Returns true, on all ranks, if the newest version
        is lost, so that newer weights are needed. Collective.
        """
        damaged = self._damage.take_damaged() if self._damage is not None else []
        copies = [next_copy(d.weights).copy for d in damaged if self._is_held(d, step)]
        (copy,) = self._ranks.broadcast_ints([copies[0] if copies else 0])
        files = self._files_again(learner, step, copy) if copy else None
        is_newest_lost = False
        for found in damaged:
            is_written = self._is_held(found, step) and next_copy(found.weights).copy == copy
            if not self._replace(found, files if is_written else None):
                is_newest_lost |= self._is_newest(found.weights)
        return self._ranks.broadcast_ints([is_newest_lost]) == [1]

    def _files_again(self, learner: StageLearner, step: int, copy: int) -> tuple[WeightsFile, ...]:
        """Writes the learner's weights as a new copy; returns the files on the first rank."""
        written = self._write(learner, WeightsName(step, self._incarnation, copy))
        return gather_files(written.part.finish_files(), self._ranks)

    def _is_held(self, damaged: DamagedWeights, step: int) -> bool:
        """Returns True if the learner's weights are those of the version."""
        weights = damaged.weights
        return (weights.version, weights.incarnation) == (step, self._incarnation)

    def _is_newest(self, weights: WeightsOnDisk) -> bool:
        return self.newest is None or weights.version >= self.newest.version

    def _replace(self, damaged: DamagedWeights, files: tuple[WeightsFile, ...] | None) -> bool:
        """Replaces one version; false if it is lost."""
        old = damaged.weights
        again = None
        if old.incarnation == self._incarnation:  # earlier ones have no say any more
            again = self._store.write_again(old, files)
        if again is None:
            logger.error("published weights are lost", extra={"reason": damaged.damage})
            self._synchronizer.retire([old], damaged.damage)
            self._store.discard(old)
            return False
        self._replace_by(again, old)
        logger.warning(
            "damaged weights were written again",
            extra={"version": old.version, "path": str(again.path)},
        )
        return True

    def _replace_by(self, again: WeightsOnDisk, old: WeightsOnDisk) -> None:
        self._pinned_by_members = self._synchronizer.publish(again)
        if self.newest is not None and self.newest.version == again.version:
            self.newest = again
        self._store.discard(old)

    def _announce(self, weights: WeightsOnDisk) -> None:
        self._pinned_by_members = self._synchronizer.publish(weights)
        self.newest = weights
        self._store.record_announced()
        self.keep_versions(self._buffer.record_version(weights))

    def current_root(self, learner: StageLearner, name: HashName = "blake3") -> bytes:
        """Returns the root of the weights as they would be published now. Collective."""
        return root_of_learner(learner, self._ranks, self._store.life, self._store.dtype, name)

    def keep_versions(self, kept: KeptVersions) -> None:
        """Records which versions must stay; deletes others, and copies the best one."""
        self._pinned_by_buffer = kept.pinned
        self.copy_best(kept.best)
        removed = self._store.prune(self._pinned_by_members | self._pinned_by_buffer)
        if removed:
            self._synchronizer.retire(removed)

    def copy_best(self, best: tuple[int, ...]) -> None:
        """Makes the best version the one in `best/`.

        A link to a version would not do: the name would change under its readers.
        """
        if self._best is not None:
            self._best.copy_first(best, self._store.published)

    def finish_stage(self) -> None:
        """Ends the stage with the newest version."""
        assert self.newest is not None
        if not self.make_newest_whole():  # the next life makes it from a checkpoint
            raise ManifestError(f"{self.newest.path} cannot be made whole: its base has changed")
        self._synchronizer.finish_role(self.newest)

    def make_newest_whole(self) -> bool:
        """Replaces a delta by whole files, for later stages and people; False if it is damaged."""
        delta = self.newest
        if delta is None or delta.is_whole:
            return True
        whole = self._store.make_whole(delta)
        if whole is not None:
            self._replace_by(whole, delta)
        return whole is not None
