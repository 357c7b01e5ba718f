"""A process that publishes as a rank of a gang; run by a test."""

import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, cast

from services.trainer.types import WeightsOnDisk
from tests.support.model_free.model import write_model
from tests.unit.trainer.test_dealt import Tensors, tensors_of

if TYPE_CHECKING:
    import torch

    from services.trainer.checkpoints.split import NamedSplits
    from services.trainer.checkpoints.weights import WeightsStore
    from services.trainer.clients import TrainerBufferClient, TrainerSynchronizerClient
    from services.trainer.collectives import Ranks
    from services.trainer.types import StageLearner

NUM_VERSIONS = 3


SPLIT = "split"


class Learns:
    """Its weights change with each step; with ranks, each of them has a part of the rows."""

    def __init__(self, ranks: "Ranks | None" = None) -> None:
        self.tensors = tensors_of()
        self._ranks = ranks

    def weights(self) -> "Iterator[tuple[str, torch.Tensor]]":
        yield from self.tensors.items()

    def split_weights(self) -> "NamedSplits | None":
        return None if self._ranks is None else self._split(self._ranks)

    def _split(self, ranks: "Ranks") -> "NamedSplits":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import DTensor, Shard

        from services.trainer.checkpoints.split import SplitTensor

        mesh = init_device_mesh("cpu", (ranks.num_ranks,))
        for name, tensor in self.tensors.items():
            own = tensor.chunk(ranks.num_ranks)[ranks.rank].clone()
            shape, stride = tensor.shape, tensor.stride()
            sharded = DTensor.from_local(own, mesh, [Shard(0)], shape=shape, stride=stride)
            yield name, SplitTensor.of(sharded, ranks)

    def step(self) -> None:
        for tensor in self.tensors.values():
            tensor += 1


class Announced:
    """Stands in for synchronizer and buffer."""

    def __init__(self) -> None:
        self.found: list[WeightsOnDisk] = []

    def publish(self, weights: WeightsOnDisk) -> set[int]:
        self.found.append(weights)
        return set(range(NUM_VERSIONS))

    def record_version(self, weights: WeightsOnDisk) -> set[int]:
        assert weights is self.found[-1]
        return set()


def stepped(num_steps: int) -> Tensors:
    """The weights after so many steps."""
    learner = Learns()
    for _ in range(num_steps):
        learner.step()
    return learner.tensors


def _store(folder: Path, *, is_first: bool) -> "WeightsStore":
    import torch

    from services.trainer.checkpoints.weights import ModelFiles, WeightsStore

    files = ModelFiles(copy=folder / "files", dtype="float32", chat_template=None)
    store = WeightsStore(root=folder / "weights", stage="rft", files=files, dtype=torch.float32)
    if is_first:
        files.copy_from(write_model(folder / "model"))
        store.load_announced([], incarnation=1)
    return store


def main(folder: Path, *, is_split: bool) -> None:
    """Publishes in a thread, while the gang goes on with collectives of its own."""
    from services.trainer.checkpoints.publisher import WeightsPublisher
    from services.trainer.collectives import join_gang

    ranks = join_gang(timedelta(seconds=60))
    announced, learner = Announced(), Learns(ranks if is_split else None)
    publisher = WeightsPublisher(
        store=_store(folder, is_first=ranks.is_first),
        buffer=cast("TrainerBufferClient", announced),
        synchronizer=cast("TrainerSynchronizerClient", announced),
        ranks=ranks,
        incarnation=1,
    )
    stage_learner = cast("StageLearner", learner)
    with ThreadPoolExecutor(1) as thread:
        for version in range(NUM_VERSIONS):
            written = publisher.write_weights(stage_learner, version)
            sealed = thread.submit(publisher.seal_and_announce, written)
            learner.step()
            for _ in range(20):
                assert ranks.all_reduce_sum([1.0]) == [float(ranks.num_ranks)]
            sealed.result()
    digest = publisher.current_hash(stage_learner)
    if ranks.is_first:
        found = {
            "paths": [str(weights.path) for weights in announced.found],
            "manifests": [weights.manifest_sha256.hex() for weights in announced.found],
            "roots": [weights.weights_root.hex() for weights in announced.found],
            "current": digest.hex(),
        }
        (folder / "found.json").write_text(json.dumps(found))
    else:
        assert not announced.found
    ranks.barrier()


if __name__ == "__main__":
    main(Path(sys.argv[1]), is_split=SPLIT in sys.argv[2:])
