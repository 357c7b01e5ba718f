"""A process that trains as a rank of a gang and leaves what it came to; run by a test."""

import sys
import warnings
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tests.unit.trainer.builders import make_plan, random_batch

if TYPE_CHECKING:
    from services.trainer.learner import Learner
    from services.trainer.ranks import Ranks

NUM_STEPS = 4
SAVED_STEP = 2
NUM_ROWS = 9
RATE = 1e-3
FIGURES = ("actor/loss", "actor/grad_norm", "actor/ppo_kl", "actor/kl_loss")


def main(model: Path, output: Path) -> None:
    """All steps, then those after the checkpoint again; the first rank saves what they gave."""
    warnings.simplefilter("ignore")
    from services.trainer.learner import Learner, make_deterministic
    from services.trainer.ranks import join_gang
    from services.trainer.weights import weights_hash

    make_deterministic(num_threads=1)
    ranks = join_gang(timedelta(seconds=60))
    plan = make_plan(
        model, {"algorithm_type": "grpo", "repeat_times": 8}, {"max_token_len_per_gpu": 64}
    )
    learner = Learner(plan=plan, model_directory=model, ranks=ranks)
    figures, checkpoint = _train(learner, ranks, output.parent)
    weights = dict(learner.weights())
    resumed = Learner(plan=plan, model_directory=model, ranks=ranks)
    resumed.load(checkpoint)
    for step in range(SAVED_STEP + 1, NUM_STEPS + 1):
        outcome = resumed.train_step(random_batch(NUM_ROWS, seed=step, step=step), RATE)
    is_same = weights_hash(dict(resumed.weights())) == weights_hash(weights)
    if ranks.is_first:
        arrays = {name: tensor.numpy() for name, tensor in weights.items()}
        arrays |= {name: np.array(values) for name, values in figures.items()}
        arrays |= {"rows": np.array(sorted(outcome.rows)), "resumed_is_same": np.array(is_same)}
        np.savez(output, **arrays)
    ranks.barrier()


def _train(
    learner: "Learner", ranks: "Ranks", directory: Path
) -> tuple[dict[str, list[float]], Path]:
    """Figures of every step, and the checkpoint on the way."""
    from services.trainer.checkpoints import CheckpointStore

    store = CheckpointStore(root=directory / "checkpoints", stage="rft", ranks=ranks)
    checkpoint = directory
    figures: dict[str, list[float]] = {name: [] for name in FIGURES}
    for step in range(1, NUM_STEPS + 1):
        outcome = learner.train_step(random_batch(NUM_ROWS, seed=step, step=step), RATE)
        for name in FIGURES:
            figures[name].append(outcome.metrics[name])
        if step == SAVED_STEP:
            checkpoint = store.write(learner, step=step, incarnation=1).path
    return figures, checkpoint


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
