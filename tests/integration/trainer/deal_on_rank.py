"""A process that publishes as a rank of a gang; run by a test."""

import json
import sys
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, cast

from services.trainer.clients import KeptVersions
from services.trainer.types import WeightsOnDisk
from tests.support.model_free.model import write_model
from tests.unit.trainer.test_dealt import BUCKET, Tensors, tensors_of

if TYPE_CHECKING:
    import torch

    from services.trainer.checkpoints.split import NamedSplits, SplitTensor
    from services.trainer.checkpoints.weights import WeightsStore
    from services.trainer.clients import TrainerBufferClient, TrainerSynchronizerClient
    from services.trainer.collectives import Ranks
    from services.trainer.types import StageLearner

NUM_VERSIONS = 3
SPLIT, SENDING, ADAPTED, HALF = "split", "sending", "adapted", "half"
"""Ranks that hold pieces; that send from memory too; whose weights an adapter changes; that publish
in half precision, of which a step changes little.
"""
RANK, SCALING = 2, 0.5
"""Of the adapter."""


class Learns:
    """Its weights change with each step; with ranks, each of them has a part of the rows."""

    def __init__(
        self,
        ranks: "Ranks | None" = None,
        *,
        is_adapted: bool = False,
        num_changed: int | None = None,
    ) -> None:
        self._num_changed = num_changed
        self.tensors = tensors_of()
        self._ranks = ranks
        self._is_adapted = is_adapted

    def weights(self) -> "Iterator[tuple[str, torch.Tensor]]":
        assert self._ranks is None, "all ranks would have all tensors whole"
        yield from self.tensors.items()

    def split_weights(self) -> "NamedSplits | None":
        return None if self._ranks is None else self._split(self._ranks)

    def _split(self, ranks: "Ranks") -> "NamedSplits":
        from services.trainer.checkpoints.split import MergedTensor

        for name, tensor in self.tensors.items():
            base = sharded(tensor, ranks)
            if not (self._is_adapted and is_adapted(name)):
                yield name, base
                continue
            up, down = (sharded(factor, ranks) for factor in factors_of(tensor))
            merged = MergedTensor(base=base, up=up, down=down, scaling=SCALING, device="cpu")
            yield name, merged

    def step(self) -> None:
        for tensor in self.tensors.values():
            tensor[: self._num_changed] += 1


def sharded(tensor: "torch.Tensor", ranks: "Ranks") -> "SplitTensor":
    """As FSDP shards it."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

    from services.trainer.checkpoints.split import SplitTensor

    mesh = init_device_mesh("cpu", (ranks.num_ranks,))
    parts = tensor.chunk(ranks.num_ranks)
    own = parts[ranks.rank].clone() if ranks.rank < len(parts) else tensor[:0].clone()
    shape, stride = tensor.shape, tensor.stride()
    whole = DTensor.from_local(own, mesh, [Shard(0)], shape=shape, stride=stride)
    return SplitTensor.of(whole, ranks)


def is_adapted(name: str) -> bool:
    return name.startswith("layers.")


def factors_of(tensor: "torch.Tensor") -> "tuple[torch.Tensor, torch.Tensor]":
    """B and A of an adapter, which are of the weights at that step."""
    return tensor[:, :RANK].contiguous(), tensor[:RANK].contiguous()


def with_change(tensors: Tensors) -> Tensors:
    """The weights merged."""

    def merged(tensor: "torch.Tensor") -> "torch.Tensor":
        up, down = factors_of(tensor)
        return tensor + SCALING * (up @ down)

    return {name: merged(t) if is_adapted(name) else t for name, t in tensors.items()}


@dataclass
class Held:
    """The bytes of whole tensors that a rank had at a time, and those that were sent to it."""

    peak: int = 0
    received: int = 0


def count_held() -> Held:
    """Counts from now on, in this process."""
    import torch

    from services.trainer.checkpoints.split import MergedTensor, SplitTensor

    held, alive = Held(), weakref.WeakSet[torch.Tensor]()
    receive = torch.distributed.recv

    def counted(tensor: torch.Tensor, *arguments: object, **named: object) -> object:
        held.received += tensor.nbytes
        return receive(tensor, *arguments, **named)

    torch.distributed.recv = counted
    for kind in (SplitTensor, MergedTensor):
        gather = kind.gather_to

        def watched(self, writer, ranks, dtype=None, gather=gather):  # type: ignore[no-untyped-def]
            whole = gather(self, writer, ranks, dtype)
            if whole is not None:
                alive.add(whole)
                held.peak = max(held.peak, sum(tensor.nbytes for tensor in alive))
            return whole

        kind.gather_to = watched  # type: ignore[method-assign]
    return held


class Sends:
    """Stands in for the server of weights from memory."""

    def __init__(self) -> None:
        self.offered: list[str] = []

    def offer_version(self, tensors: Tensors) -> None:
        from services.trainer.checkpoints.weights import weights_hash

        self.offered.append(weights_hash(tensors).hex())


class Announced:
    """Stands in for synchronizer and buffer."""

    def __init__(self) -> None:
        self.found: list[WeightsOnDisk] = []

    def publish(self, weights: WeightsOnDisk) -> set[int]:
        self.found.append(weights)
        return set(range(NUM_VERSIONS))

    def record_version(self, weights: WeightsOnDisk) -> KeptVersions:
        assert weights is self.found[-1]
        return KeptVersions()


def stepped(num_steps: int, num_changed: int | None = None) -> Tensors:
    """The weights after so many steps."""
    learner = Learns(num_changed=num_changed)
    for _ in range(num_steps):
        learner.step()
    return learner.tensors


def _store(folder: Path, dtype: str, *, is_first: bool) -> "WeightsStore":
    import torch

    from services.trainer.checkpoints.weights import ModelFiles, WeightsStore

    files = ModelFiles(copy=folder / "files", dtype=dtype, chat_template=None)
    store = WeightsStore(
        root=folder / "weights", stage="rft", files=files, dtype=getattr(torch, dtype)
    )
    if is_first:
        files.copy_from(write_model(folder / "model"))
        store.load_announced([], incarnation=1)
    return store


def main(folder: Path, kind: str) -> None:
    """Publishes in a thread, while the gang goes on with collectives of its own."""
    from services.trainer.checkpoints import dealt
    from services.trainer.checkpoints.publisher import TransferServer, WeightsPublisher
    from services.trainer.collectives import join_gang

    ranks = join_gang(timedelta(seconds=60))
    if kind in (SENDING, ADAPTED):
        dealt.MAX_BUCKET_BYTES = BUCKET
    held, announced, sends = count_held(), Announced(), Sends()
    dtype, num_changed = ("bfloat16", 1) if kind == HALF else ("float32", None)
    learner = Learns(ranks if kind else None, is_adapted=kind == ADAPTED, num_changed=num_changed)
    is_sender = kind == SENDING and ranks.is_first
    publisher = WeightsPublisher(
        store=_store(folder, dtype, is_first=ranks.is_first),
        buffer=cast("TrainerBufferClient", announced),
        synchronizer=cast("TrainerSynchronizerClient", announced),
        ranks=ranks,
        incarnation=1,
        server=cast("TransferServer", sends) if is_sender else None,
    )
    stage_learner = cast("StageLearner", learner)
    with ThreadPoolExecutor(1) as thread:
        for version in range(NUM_VERSIONS):
            written = publisher.write_weights(stage_learner, version, b"")
            sealed = thread.submit(publisher.seal_and_announce, written)
            learner.step()
            for _ in range(20):
                assert ranks.all_reduce_sum([1.0]) == [float(ranks.num_ranks)]
            sealed.result()
    (folder / f"held-{ranks.rank}.json").write_text(json.dumps(asdict(held)))
    digest = publisher.current_root(stage_learner)
    if ranks.is_first:
        found = {
            "paths": [str(weights.path) for weights in announced.found],
            "manifests": [weights.manifest_sha256.hex() for weights in announced.found],
            "roots": [weights.weights_blake3.hex() for weights in announced.found],
            "offered": sends.offered,
            "current": digest.hex(),
        }
        (folder / "found.json").write_text(json.dumps(found))
    else:
        assert not announced.found
    ranks.barrier()


if __name__ == "__main__":
    main(Path(sys.argv[1]), (*sys.argv[2:], "")[0])
