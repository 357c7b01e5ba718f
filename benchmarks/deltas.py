"""Bytes of versions that are stored as differences, over the whole ones, in a real training.

    python -m benchmarks.deltas [--steps 9] [--lr 1e-6] [--json FILE]

A Llama of 30 million parameters, whose weights begin as bfloat16 and are kept in single precision,
learns the words of this repository's pages by AdamW, as the trainer's ranks do. Each step is
published in bfloat16 by the trainer's store, and applied as an explorer does, which compares every
tensor: in place of the version before in shared memory, the same by a second engine, and from the
whole version on the disk into scratch there. Eight versions are a whole one and seven differences.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import psutil
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.table import PerformanceClaim, print_claims
from services.trainer.checkpoints.weights import (
    ALONE,
    WHOLE_EVERY,
    ModelFiles,
    WeightsName,
    WeightsStore,
)
from services.trainer.types import WeightsOnDisk
from trinity.weights.manifest import bytes_below
from trinity.weights.whole import SharedModel, whole_model

ROOT = Path(__file__).resolve().parent.parent
VOCABULARY = 8192
ROWS, LENGTH = 2, 128


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=WHOLE_EVERY + 1)
    parser.add_argument("--lr", type=float, default=1e-6)
    parser.add_argument("--json", type=Path, default=ROOT / "benchmarks/results/deltas.json")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        record = measure(given.steps, given.lr, Path(folder))
    given.json.write_text(json.dumps(record, indent=2) + "\n")


def measure(num_steps: int, lr: float, folder: Path) -> dict[str, object]:
    """Trains and publishes so many steps."""
    model = _model()
    store = _store(folder)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.01)
    rows = _rows()
    shared = SharedModel()
    steps = [_publish(store, shared, model, 0)]
    for step in range(1, num_steps):
        _train(model, optimizer, next(rows))
        steps.append(_publish(store, shared, model, step))
        print(steps[-1], flush=True)
        store.prune(set())
    return _report(steps, sum(p.numel() for p in model.parameters()), lr)


def _model() -> LlamaForCausalLM:
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=512,
        intermediate_size=1376,
        num_hidden_layers=8,
        num_attention_heads=8,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config).bfloat16().float()


def _rows() -> Iterator[torch.Tensor]:
    """Batches of the pages' words, each a number by its hash, over and over."""
    words = " ".join(path.read_text() for path in sorted((ROOT / "docs").glob("*.md"))).split()
    numbers = torch.tensor([sum(map(ord, word)) * 31 % VOCABULARY for word in words])
    batches = numbers[: len(numbers) // (ROWS * LENGTH) * ROWS * LENGTH].view(-1, ROWS, LENGTH)
    while True:
        yield from batches


def _train(
    model: LlamaForCausalLM, optimizer: torch.optim.Optimizer, tokens_BT: torch.Tensor
) -> None:
    optimizer.zero_grad()
    model(input_ids=tokens_BT, labels=tokens_BT).loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def _publish(
    store: WeightsStore, shared: SharedModel, model: LlamaForCausalLM, step: int
) -> dict[str, float]:
    """Publishes a version as the trainer does, and loads it as an explorer does."""
    name, base = WeightsName(step, 1), store.next_base(1)
    path = None if base is None else base.path
    store.create_directory(name)
    part = store.new_part(name, ALONE)
    own = {name: p.detach() for name, p in model.named_parameters()}
    part.write_tensors(own.items())
    begun = time.perf_counter()
    weights = store.seal_files(name, part.finish_files(path), b"", path)
    sealed = time.perf_counter()
    ways = {"shared": shared.whole_model, "again": shared.whole_model, "scratch": whole_model}
    taken = {
        f"{way}_{what}": number
        for way, apply in ways.items()
        for what, number in _taken_by(apply, weights)
    }
    return {
        "step": step,
        "is_delta": weights.base_version is not None,
        "bytes": _weights_bytes(weights),
        "seal_seconds": sealed - begun,
        **taken,
    }


def _taken_by(
    apply: Callable[[Path, WeightsOnDisk], AbstractContextManager[Path]], weights: WeightsOnDisk
) -> Iterator[tuple[str, float]]:
    """Yields processor seconds until the files are whole and compared, and bytes to the disk."""
    begun, written = time.process_time(), psutil.Process().io_counters().write_bytes
    with apply(weights.path, weights):
        yield "cpu_seconds", time.process_time() - begun
        yield "disk_bytes", psutil.Process().io_counters().write_bytes - written


def _weights_bytes(weights: WeightsOnDisk) -> int:
    """All that an explorer reads, the hashes of the tensors included."""
    return bytes_below(weights.path)


def _store(folder: Path) -> WeightsStore:
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text("{}")
    files = ModelFiles(copy=folder / ".model", dtype="bfloat16", chat_template=None)
    files.copy_from(folder / "model")
    store = WeightsStore(root=folder / "weights", stage="rft", files=files, dtype=torch.bfloat16)
    store.load_announced([], incarnation=1)
    return store


def _report(steps: list[dict[str, float]], size: int, lr: float) -> dict[str, object]:
    whole = statistics.median(step["bytes"] for step in steps if not step["is_delta"])
    shares = [step["bytes"] / whole for step in steps if step["is_delta"]]
    held = [step for step in steps if step["is_delta"]][1:]
    shared, again, scratch = (
        statistics.median(step[f"{way}_cpu_seconds"] for step in held)
        for way in ("shared", "again", "scratch")
    )
    claims = [
        PerformanceClaim("bytes of a delta over the whole", statistics.mean(shares), 0.04, "<="),
        PerformanceClaim("processor seconds in place over scratch", shared / scratch, 1.2, "<="),
        PerformanceClaim("those of a host's second engine", again / scratch, 0.5, "<="),
    ]
    print_claims(claims)
    return {
        "parameters": size,
        "lr": lr,
        "all_versions_over_whole_ones": sum(step["bytes"] for step in steps) / (whole * len(steps)),
        "largest_share": max(shares),
        "claims": [claim.as_json() for claim in claims],
        "steps": steps,
    }


if __name__ == "__main__":
    main()
