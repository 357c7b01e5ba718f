"""The trainer's part: steps of the real learner, and weights on their way out."""

import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from benchmarks.gang import join_alone
from benchmarks.gpu.figures import measure_device, settle
from benchmarks.gpu.sizes import Size
from services.trainer.types import TrainBatch, TrainRow
from tests.unit.trainer.builders import make_plan
from trinity.config.plan.stage_plan import StagePlan

if TYPE_CHECKING:
    from services.trainer.learner.learner import Learner

NUM_UNCOUNTED = 2


def measure_training(model: Path, weights: Path, size: Size, steps: int) -> dict[str, float | str]:
    """Seconds of a step and of the export; the weights are left below `weights`."""
    device = measure_device(size.dtype)
    ranks = join_alone(num_threads=torch.get_num_threads())
    from services.trainer.checkpoints.weights import ModelFiles, WeightsStore
    from services.trainer.learner.learner import Learner

    learner = Learner(plan=_plan(model, size), model_directory=model, ranks=ranks)
    seconds = [_step_seconds(learner, size, step) for step in range(steps + NUM_UNCOUNTED)]
    files = ModelFiles(copy=weights / ".model", dtype=size.dtype, chat_template=None)
    files.copy_from(model)
    dtype = getattr(torch, size.dtype)
    store = WeightsStore(root=weights, stage="rft", files=files, dtype=dtype)
    settle()
    begun = time.perf_counter()
    exported = store.to_published_dtype(learner.weights())
    taken = time.perf_counter()
    published = store.write(exported, version=1, incarnation=1)
    written = time.perf_counter()
    return {
        **{f"device_{name}": value for name, value in device.items()},
        "step_seconds": statistics.median(seconds[NUM_UNCOUNTED:]),
        "tokens_per_step": float(size.rows * size.max_length),
        "export_seconds": taken - begun,
        "write_seconds": written - taken,
        "weights_bytes": float(sum(t.numel() * t.element_size() for t in exported.values())),
        **_peak_memory(),
        "path": str(published.path),
        "manifest_sha256": published.manifest_sha256.hex(),
        "weights_blake3": published.weights_blake3.hex(),
    }


def _peak_memory() -> dict[str, float]:
    """Returns the peak memory of a GPU; that of the processor is unknown."""
    if not torch.cuda.is_available():
        return {}
    return {"peak_memory_bytes": float(torch.cuda.max_memory_allocated())}


def _plan(model: Path, size: Size) -> StagePlan:
    algorithm = {"algorithm_type": "grpo", "repeat_times": 8, "kl_loss_fn": "none"}
    trainer = {"dtype": size.dtype, "max_token_len_per_gpu": size.tokens_per_part}
    return make_plan(model, algorithm, trainer)


def _step_seconds(learner: "Learner", size: Size, step: int) -> float:
    batch = _batch(size, step)
    settle()
    begun = time.perf_counter()
    learner.train_step(batch, 1e-6)
    settle()
    return time.perf_counter() - begun


def _batch(size: Size, step: int) -> TrainBatch:
    """Rows of full length, in which every token of the response is trained on."""
    random = np.random.default_rng(step)
    rows = [
        TrainRow(
            position=position,
            tokens=random.integers(2, size.vocabulary, size.max_length).astype(np.int32),
            prompt_length=size.prompt,
            mask=np.ones(size.response, dtype=np.bool_),
            rollout_logprobs=np.full(size.response, -np.log(size.vocabulary), dtype=np.float32),
            advantages=np.full(size.response, random.normal(), dtype=np.float32),
        )
        for position in range(size.rows)
    ]
    return TrainBatch(step=step + 1, rows=rows, metrics={}, replayed=False)
