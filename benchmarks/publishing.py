"""The cost of publishing by a gang, over publishing by one process.

    python -m benchmarks.publishing [--parameters 494e6] [--ranks 4] [--repeats 5] [--json FILE]

Random weights in the shapes of a small Qwen2.5 are published as files by one process, and by ranks
that hold them in shards and gather each tensor as FSDP does. Runs of both kinds take turns, and the
median counts. Compared are processor seconds of all processes together, from the first tensor until
the version is sealed, so that what else the machine does changes little. The peak of memory is that
of a rank above what it held before: a bucket of files and the tensor that is gathered. With few
parameters the exchange between the processes outweighs everything else.
"""

import argparse
import json
import os
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import timedelta
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, cast

import psutil

if TYPE_CHECKING:
    import torch

    from services.trainer.checkpoints.publisher import WeightsPublisher
    from services.trainer.checkpoints.split import NamedSplits
    from services.trainer.clients import TrainerBufferClient, TrainerSynchronizerClient
    from services.trainer.collectives import Ranks
    from services.trainer.types import StageLearner

ROOT = Path(__file__).resolve().parents[1]
AIM = 1.05
SEED = 7
RANK = (sys.executable, "-m", "benchmarks.publishing")
VOCABULARY, WIDTH, INNER, KEYS = 151_936, 896, 4_864, 128
LAYER = {
    "self_attn.q_proj.weight": (WIDTH, WIDTH),
    "self_attn.k_proj.weight": (KEYS, WIDTH),
    "self_attn.v_proj.weight": (KEYS, WIDTH),
    "self_attn.o_proj.weight": (WIDTH, WIDTH),
    "mlp.gate_proj.weight": (INNER, WIDTH),
    "mlp.up_proj.weight": (INNER, WIDTH),
    "mlp.down_proj.weight": (WIDTH, INNER),
    "input_layernorm.weight": (WIDTH,),
    "post_attention_layernorm.weight": (WIDTH,),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parameters", type=float, default=494e6)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path, default=ROOT / "benchmarks/results/publishing.json")
    parser.add_argument("--as-rank", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.as_rank is not None:
        publish_as_rank(given.as_rank, given.parameters)
        return
    found: dict[int, list[dict[str, float]]] = {1: [], given.ranks: []}
    for _ in range(given.repeats):
        for num_ranks, runs in found.items():
            runs.append(published_by(num_ranks, given.parameters))
    record = summary(found, given.ranks, given.parameters)
    given.json.write_text(json.dumps(record, indent=2) + "\n")
    print(json.dumps(record, indent=2))


def summary(
    found: dict[int, list[dict[str, float]]], num_ranks: int, parameters: float
) -> dict[str, object]:
    """Returns medians, their ratio and the aim."""
    medians = {
        number: {name: statistics.median(run[name] for run in runs) for name in runs[0]}
        for number, runs in found.items()
    }
    return {
        "aim": AIM,
        "load_of_the_machine": os.getloadavg()[0],
        "parameters": parameters,
        "processors": os.cpu_count(),
        "ranks": num_ranks,
        "ratio_of_processor_seconds": (
            medians[num_ranks]["processor_seconds"] / medians[1]["processor_seconds"]
        ),
        "repeats": len(found[1]),
        "by_one": medians[1],
        "by_ranks": medians[num_ranks],
    }


def published_by(num_ranks: int, parameters: float) -> dict[str, float]:
    """Returns what one version took."""
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as own:
        processes = [
            subprocess.Popen(
                [*RANK, "--as-rank", folder, "--parameters", str(parameters)],
                env=os.environ | _variables(rank, num_ranks, own),
                pass_fds=(own.fileno(),),
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(num_ranks)
        ]
        told = [json.loads(process.communicate()[0]) for process in processes]
        assert all(process.returncode == 0 for process in processes)
    return {
        "processor_seconds": sum(measured["processor_seconds"] for measured in told),
        "seconds": max(measured["seconds"] for measured in told),
        "peak_mib_above_shards": max(measured["peak_mib"] for measured in told),
    }


def _variables(rank: int, num_ranks: int, listener: socket.socket) -> dict[str, str]:
    from services.trainer.messages import LISTENER_VARIABLE

    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(num_ranks),
        "LOCAL_WORLD_SIZE": str(num_ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(listener.getsockname()[1]),
        "OMP_NUM_THREADS": "1",
        LISTENER_VARIABLE: str(listener.fileno()),
    }


def shapes(parameters: float) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yields the tensors of a model of about so many parameters, by layers; the head is tied."""
    per_layer = sum(prod(shape) for shape in LAYER.values())
    rows = min(VOCABULARY, int(parameters / 3 / WIDTH) // 64 * 64)
    yield "model.embed_tokens.weight", (rows, WIDTH)
    for layer in range(max(1, round((parameters - rows * WIDTH) / per_layer))):
        for name, shape in LAYER.items():
            yield f"model.layers.{layer}.{name}", shape
    yield "model.norm.weight", (WIDTH,)


class ShardedModel:
    """Random weights; a rank of several holds shards, and gathers a tensor when it is asked for."""

    def __init__(self, parameters: float, ranks: "Ranks") -> None:
        import torch
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import DTensor, Shard

        self._ranks = ranks
        draws = torch.Generator().manual_seed(SEED + ranks.rank)
        mesh = init_device_mesh("cpu", (ranks.num_ranks,)) if ranks.num_ranks > 1 else None
        self._tensors: dict[str, torch.Tensor] = {}
        for name, (rows, *rest) in shapes(parameters):
            size = (rows // ranks.num_ranks, *rest)
            own = torch.randn(size, generator=draws).to(torch.bfloat16)
            self._tensors[name] = own if mesh is None else DTensor.from_local(own, mesh, [Shard(0)])

    def weights(self) -> "Iterator[tuple[str, torch.Tensor]]":
        """Yields the tensors whole."""
        from torch.distributed.tensor import DTensor

        for name, tensor in self._tensors.items():
            yield name, tensor.full_tensor() if isinstance(tensor, DTensor) else tensor

    def split_weights(self) -> "NamedSplits | None":
        """Yields the tensors as the ranks hold them; None for one process."""
        from services.trainer.checkpoints.split import SplitTensor

        if self._ranks.num_ranks == 1:
            return None
        tensors = self._tensors.items()
        return ((name, SplitTensor.of(tensor, self._ranks)) for name, tensor in tensors)


def publish_as_rank(folder: Path, parameters: float) -> None:
    """Publishes one version, and tells what it took on standard output."""
    from services.trainer.collectives import join_gang

    ranks = join_gang(timedelta(minutes=30))
    publisher = _publisher(folder, ranks)
    model = cast("StageLearner", ShardedModel(parameters, ranks))
    for _ in model.weights():  # whatever the first exchange sets up
        break
    ranks.barrier()
    before = psutil.Process().memory_info().rss
    started, busy = time.perf_counter(), time.process_time()
    publisher.publish(model, 1)
    ranks.barrier()
    took = {
        "processor_seconds": time.process_time() - busy,
        "seconds": time.perf_counter() - started,
        "peak_mib": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before) / 2**20,
    }
    print(json.dumps(took), flush=True)
    ranks.barrier()
    os._exit(0)


def _publisher(folder: Path, ranks: "Ranks") -> "WeightsPublisher":
    import torch

    from services.trainer.checkpoints.publisher import WeightsPublisher
    from services.trainer.checkpoints.weights import ModelFiles, WeightsStore
    from tests.integration.trainer.deal_on_rank import Announced
    from tests.support.model_free.model import write_model

    files = ModelFiles(copy=folder / "files", dtype="bfloat16", chat_template=None)
    store = WeightsStore(root=folder / "weights", stage="rft", files=files, dtype=torch.bfloat16)
    if ranks.is_first:
        files.copy_from(write_model(folder / "model"))
        store.load_announced([], incarnation=1)
    announced = Announced()
    return WeightsPublisher(
        store=store,
        buffer=cast("TrainerBufferClient", announced),
        synchronizer=cast("TrainerSynchronizerClient", announced),
        ranks=ranks,
        incarnation=1,
    )


if __name__ == "__main__":
    main()
