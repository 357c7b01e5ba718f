"""The trainer's update of 64 rows over a plain step of torch, for a model of 76 million parameters.

    python -m benchmarks.trainer.update [--repeats 5] [--threads 2] [--json FILE]

Both take the same rows, in one process with as many threads as a run at `sync_offset: 0` gives a
trainer without GPUs: the trainer's whole train step of GRPO, and forward, backward, clipping and
AdamW of a file of torch. They take turns, and the median of the ratios counts, in processor
seconds, which other programs on the machine disturb less than the clock.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from trinity.launch.machine import SLEEPING

ROOT = Path(__file__).resolve().parents[2]
AIM = 1.1
NUM_ROWS, PROMPT, RESPONSE = 64, 12, 8
SEED = 0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--json", type=Path, default=ROOT / "benchmarks/results/update.json")
    given = parser.parse_args()
    os.environ.update(SLEEPING)  # as the launcher has it; before torch is imported
    with tempfile.TemporaryDirectory() as folder:
        record = compared(Path(folder) / "model", given.repeats, given.threads)
    given.json.write_text(json.dumps(record, indent=2) + "\n")
    print(json.dumps(record, indent=2))


def compared(directory: Path, repeats: int, threads: int) -> dict[str, object]:
    """Returns the figures of both, in turns; the first turn of each warms up."""
    from benchmarks.overhead.models import write_big_model

    steps = {
        "trainer": trainer_step(write_big_model(directory), threads),
        "plain": plain_step(directory),
    }
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(repeats + 1):
        for name, step in steps.items():
            begun = time.process_time()
            step()
            seconds[name].append(time.process_time() - begun)
    pairs = list(zip(seconds["trainer"], seconds["plain"], strict=True))[1:]
    return {
        "aim": AIM,
        "load_of_the_machine": os.getloadavg()[0],
        "processors": os.cpu_count(),
        "threads": threads,
        "rows": NUM_ROWS,
        "tokens": NUM_ROWS * (PROMPT + RESPONSE),
        "ratio_of_processor_seconds": statistics.median(ours / plain for ours, plain in pairs),
        "processor_seconds": {name: found[1:] for name, found in seconds.items()},
    }


def trainer_step(model: Path, threads: int) -> Callable[[], object]:
    """Returns the step of this project's trainer."""
    import numpy as np

    from benchmarks.gang import join_alone
    from services.trainer.types import TrainBatch, TrainRow
    from tests.unit.trainer.builders import make_plan

    ranks = join_alone(num_threads=threads)
    from services.trainer.learner.learner import Learner

    draws = np.random.default_rng(SEED)
    rows = [
        TrainRow(
            position=position,
            tokens=draws.integers(2, 14, PROMPT + RESPONSE).astype(np.int32),
            prompt_length=PROMPT,
            mask=np.ones(RESPONSE, dtype=np.bool_),
            rollout_logprobs=np.full(RESPONSE, -2.0, dtype=np.float32),
            advantages=np.full(RESPONSE, draws.normal(), dtype=np.float32),
        )
        for position in range(NUM_ROWS)
    ]
    algorithm = {"algorithm_type": "grpo", "repeat_times": 8, "kl_loss_fn": "none"}
    plan = make_plan(model, algorithm, {"max_token_len_per_gpu": 16_384})
    learner = Learner(plan=plan, model_directory=model, ranks=ranks)
    batch = TrainBatch(step=1, rows=rows, metrics={}, replayed=False)
    return lambda: learner.train_step(batch, 1e-6)


def plain_step(model: Path) -> Callable[[], object]:
    """Returns the step of the plain loop."""
    import torch
    from transformers import AutoModelForCausalLM

    from benchmarks.overhead.plain_loop import _train

    draws = torch.Generator().manual_seed(SEED)
    plain = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-6)
    prompts_BP = torch.randint(2, 14, (NUM_ROWS, PROMPT), generator=draws)
    tokens_BT = torch.randint(2, 14, (NUM_ROWS, RESPONSE), generator=draws)
    old_BT = torch.full((NUM_ROWS, RESPONSE), -2.0)
    advantages_B = torch.randn(NUM_ROWS, generator=draws)
    return lambda: _train(plain, optimizer, prompts_BP, tokens_BT, old_BT, advantages_B)


if __name__ == "__main__":
    main()
