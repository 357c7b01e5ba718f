"""A process that takes one train step as a rank of a gang and leaves the weights; run by a test."""

import sys
import warnings
from datetime import timedelta
from pathlib import Path

import numpy as np

from tests.unit.trainer.builders import make_plan, random_batch


def main(model: Path, output: Path) -> None:
    """Step, then the first rank saves the gradients' norm and the weights."""
    warnings.simplefilter("ignore")
    from services.trainer.learner import Learner, make_deterministic
    from services.trainer.ranks import join_gang

    make_deterministic(num_threads=1)
    ranks = join_gang(timedelta(seconds=60))
    plan = make_plan(
        model, {"algorithm_type": "grpo", "repeat_times": 8}, {"max_token_len_per_gpu": 64}
    )
    learner = Learner(plan=plan, model_directory=model, ranks=ranks)
    outcome = learner.train_step(random_batch(9, seed=5), 1e-3)
    weights = {name: tensor.numpy() for name, tensor in learner.weights()}
    if ranks.is_first:
        rows = np.array(sorted(outcome.rows))
        figures = {name: np.float64(value) for name, value in outcome.metrics.items()}
        np.savez(output, **weights, **figures, rows=rows)
    ranks.barrier()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
