"""Measures how soon an engine has a trainer's weights: from its memory, through files, and at best.

python -m benchmarks.weight_sync [--size 0.5b] [--rank 32] [--runs 5] [--json FILE]

Two processes of one machine: a trainer's parts, and a receiver that holds the weights as an engine
would and takes them tensor by tensor, each whole transfer checked against the announced hash.
Beside them stand what nothing can do without: torch's broadcast of the same bytes over gloo, a copy
of the file (from memory, as it was just written), and the hash of the bytes, also that of before.
The last rows are what an adapter alone would take: its own bytes by the same way, and then adding
it to every layer.
"""

import argparse
import json
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from unittest.mock import patch

import torch

from benchmarks.gpu.sizes import SIZES, Size
from benchmarks.table import PerformanceClaim, print_claims
from benchmarks.weight_receiver import (
    Adding,
    Broadcast,
    Copying,
    FromFiles,
    FromMemory,
    Hashing,
    Receiver,
    broadcast_group,
    messages_of,
)
from services.trainer.checkpoints.dealt import WEIGHTS_NAME
from services.trainer.checkpoints.weights import (
    ModelFiles,
    WeightsStore,
    weights_hash,
)
from trinity.weights.offer import TransferTimeouts
from trinity.weights.sending import WeightsSender

Shapes = dict[str, tuple[int, ...]]
ROOT = Path(__file__).resolve().parent.parent
LIMITS = TransferTimeouts(
    turn_seconds=60.0, join_seconds=60.0, stall_seconds=60.0, whole_seconds=600.0
)
HOST = "127.0.0.1"
Seconds = dict[str, list[float]]
MEMORY, FILES = "engine: from memory", "engine: from files, checked"
BROADCAST, COPY = "peer: gloo broadcast", "peer: copy of the file"
HASH, BEFORE = "limit: BLAKE3", "limit: SHA-256, of release 0.1"
WRITE, KEEP = "trainer: files written and hashed", "trainer: a copy that is offered"
UNSYNCED = "trainer: the same without fsync"
PLAIN = "limit: the bytes written and fsynced"
ADAPTER, ADD = "adapter alone: from memory", "adapter alone: added to every layer"


def shapes_of(size: Size) -> Shapes:
    """Returns the shapes of a Qwen2 whose output layer is the input's."""
    shapes: Shapes = {"model.embed_tokens.weight": (size.vocabulary, size.hidden)}
    for layer in range(size.layers):
        for name, shape in _linear(size):
            shapes[f"model.layers.{layer}.{name}.weight"] = shape
        for name in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"model.layers.{layer}.{name}.weight"] = (size.hidden,)
    return {**shapes, "model.norm.weight": (size.hidden,)}


def adapter_shapes(size: Size, rank: int) -> Shapes:
    """An adapter of every linear layer, under peft's names."""
    shapes: Shapes = {}
    for layer in range(size.layers):
        for name, (rows, columns) in _linear(size):
            at = f"model.layers.{layer}.{name}"
            shapes[f"{at}.lora_A.weight"] = (rank, columns)
            shapes[f"{at}.lora_B.weight"] = (rows, rank)
    return shapes


def made(shapes: Shapes, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Random tensors, the same each time."""
    torch.manual_seed(1)
    return {name: torch.randn(shape, dtype=dtype) for name, shape in shapes.items()}


def _linear(size: Size) -> Iterator[tuple[str, tuple[int, int]]]:
    kept = size.hidden // size.heads * size.kv_heads
    yield "self_attn.q_proj", (size.hidden, size.hidden)
    yield "self_attn.k_proj", (kept, size.hidden)
    yield "self_attn.v_proj", (kept, size.hidden)
    yield "self_attn.o_proj", (size.hidden, size.hidden)
    yield "mlp.gate_proj", (size.intermediate, size.hidden)
    yield "mlp.up_proj", (size.intermediate, size.hidden)
    yield "mlp.down_proj", (size.hidden, size.intermediate)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", choices=list(SIZES), default="0.5b")
    parser.add_argument("--rank", type=int, default=32, help="of the adapter")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", type=Path, default=ROOT / "benchmarks/results/weight_sync.json")
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        record = measure(given.size, given.rank, given.runs, Path(folder))
    given.json.write_text(json.dumps(record, indent=2) + "\n")


def measure(name: str, rank: int, runs: int, folder: Path) -> dict[str, object]:
    """Everything, `runs` times, in turns."""
    size = SIZES[name]
    dtype = getattr(torch, size.dtype)
    weights = made(shapes_of(size), dtype)
    adapter = made(adapter_shapes(size, rank), torch.float32)
    store = _store(folder, size.dtype)
    seconds: Seconds = {}
    with Receiver(
        {name: tuple(tensor.shape) for name, tensor in weights.items()}, dtype
    ) as receiver:
        for run in range(runs + 1):
            now = _once(weights, adapter, store, receiver, version=run + 1)
            for way, taken in now.items() if run else ():  # the first one warms up
                seconds.setdefault(way, []).append(taken)
            print({way: round(taken, 3) for way, taken in now.items()}, flush=True)
    return _report(name, seconds, _bytes(weights), _bytes(adapter))


def _once(
    weights: dict[str, torch.Tensor],
    adapter: dict[str, torch.Tensor],
    store: WeightsStore,
    receiver: Receiver,
    *,
    version: int,
) -> dict[str, float]:
    begun = time.perf_counter()
    exported = store.to_published_dtype(weights.items(), copied=True)
    kept = time.perf_counter()
    published = store.write(exported, version=version, incarnation=1)
    written = time.perf_counter()
    _write(exported, published.path.parent / "plain")
    plain = time.perf_counter()
    with patch("os.fsync"):
        store.write(exported, version=version, incarnation=2)
    unsynced = time.perf_counter()
    os.sync()
    taken = {
        KEEP: kept - begun,
        WRITE: written - kept,
        PLAIN: plain - written,
        UNSYNCED: unsynced - plain,
        MEMORY: _from_memory(exported, published.weights_blake3, receiver),
        FILES: receiver.seconds(FromFiles(published.path, published.manifest_sha256)),
        BROADCAST: _broadcast(exported, receiver),
        COPY: receiver.seconds(Copying(published.path / WEIGHTS_NAME)),
        HASH: receiver.seconds(Hashing("blake3")),
        BEFORE: receiver.seconds(Hashing("sha256")),
        ADAPTER: _from_memory(adapter, weights_hash(adapter), receiver),
        ADD: receiver.seconds(Adding()),
    }
    store.prune(set())
    return taken


def _write(tensors: dict[str, torch.Tensor], path: Path) -> None:
    with path.open("wb") as file:
        for tensor in tensors.values():
            file.write(tensor.flatten().view(torch.uint8).numpy())
        file.flush()
        os.fsync(file.fileno())
    path.unlink()


def _from_memory(tensors: dict[str, torch.Tensor], root: bytes, receiver: Receiver) -> float:
    turn = threading.Lock()
    offer = WeightsSender(tensors, host=HOST, name="benchmark", limits=LIMITS, transfer_lock=turn)
    try:
        return receiver.seconds(FromMemory(asdict(offer.offer), asdict(LIMITS), root.hex()))
    finally:
        offer.withdraw(60.0)


def _broadcast(tensors: dict[str, torch.Tensor], receiver: Receiver) -> float:
    """Sends messages as large as ours, packed beforehand."""
    messages = messages_of(tensors)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "store"
        job = Broadcast(place, [message.numel() for message in messages])
        return receiver.seconds(job, meanwhile=lambda: _send(place, messages))


def _send(place: Path, messages: list[torch.Tensor]) -> None:
    group = broadcast_group(place, rank=0)
    for message in messages:
        group.broadcast(message, 0).wait()


def _store(folder: Path, dtype: str) -> WeightsStore:
    files = ModelFiles(copy=folder / ".model", dtype=dtype, chat_template=None)
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text("{}")
    files.copy_from(folder / "model")
    root = folder / "weights"
    root.mkdir()
    return WeightsStore(root=root, stage="rft", files=files, dtype=getattr(torch, dtype))


def _bytes(tensors: dict[str, torch.Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors.values())


def _report(name: str, seconds: Seconds, size: int, adapter: int) -> dict[str, object]:
    medians = {way: statistics.median(taken) for way, taken in seconds.items()}
    claims = [
        PerformanceClaim(
            "weights from memory over those from files", medians[MEMORY] / medians[FILES], 1, "<="
        ),
        PerformanceClaim(
            "weights from memory over a broadcast and a hash",
            medians[MEMORY] / (medians[BROADCAST] + medians[HASH]),
            1.5,
            "<=",
        ),
        PerformanceClaim(  # the quickest of each: other work on the machine only adds
            "written without fsync over with it",
            min(seconds[UNSYNCED]) / min(seconds[WRITE]),
            0.9,
            ">=",
        ),
        PerformanceClaim(
            "through files, over a write, fsync, cached read, hash and copy of the bytes",
            (medians[WRITE] + medians[FILES]) / (medians[PLAIN] + medians[COPY] + medians[HASH]),
            1.2,
            "<=",
        ),
        PerformanceClaim("hashing over SHA-256", medians[HASH] / medians[BEFORE], 0.4, "<="),
    ]
    print_claims(claims)
    return {
        "size": name,
        "bytes": size,
        "adapter_bytes": adapter,
        "seconds": medians,
        "bytes_per_second": {
            way: (adapter if way == ADAPTER else size) / taken for way, taken in medians.items()
        },
        "claims": [claim.as_json() for claim in claims],
        "runs": seconds,
        "machine": {"load_average": os.getloadavg(), "num_cores": os.cpu_count()},
    }


if __name__ == "__main__":
    main()
