"""Our learner in one process, on the addition model or one of 30 million parameters."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.algorithms.beside.course import ADDITION, EDITS, HINTED, LARGE, OURS, Course
from benchmarks.algorithms.data import DataTrainer
from benchmarks.algorithms.job import TrialJob
from benchmarks.algorithms.outcome import CURVE_INTERVAL
from benchmarks.algorithms.start import make_start
from benchmarks.algorithms.tasks import TASKS
from benchmarks.algorithms.train import TrialTrainer, save
from benchmarks.algorithms.trials import SETTINGS, Trial

if TYPE_CHECKING:
    from services.trainer.collectives import Ranks

BENCH_TASKS = {
    EDITS: TASKS["edits"],
    HINTED: replace(TASKS["edits"], name=HINTED, shows_hints=True),
}
NUM_ROWS = {ADDITION: 128, LARGE: 64, EDITS: 96, HINTED: 96}
NUM_STEPS = {ADDITION: 20, LARGE: 20, EDITS: 40, HINTED: 40}
EVAL_INTERVAL = {ADDITION: 4, LARGE: 10, EDITS: CURVE_INTERVAL, HINTED: CURVE_INTERVAL}
NUM_HELD_OUT = {ADDITION: 1024, LARGE: 256, EDITS: 512, HINTED: 512}
LEARNING_RATES = {ADDITION: 1.0e-4, LARGE: 3.0e-5, EDITS: 1.0e-4, HINTED: 1.0e-4}
LARGE_SHAPE = {
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 9,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
}
"""30.7 million parameters without the embeddings of a few hundred tokens."""


def trial_of(algorithm: str, model: str = ADDITION) -> Trial:
    """Returns the algorithm with its own loss alone: neither a reference nor entropy is in it."""
    alone = {"kl_loss_fn": "none", "entropy_loss_fn": "none"}
    optimizer = {**SETTINGS["optimizer"], "lr": LEARNING_RATES[model]}
    settings = {**SETTINGS, **alone, "algorithm_type": algorithm, "optimizer": optimizer}
    return Trial(name=algorithm, algorithm=settings)


def prepared_trainer(work: Path, model: str, ranks: "Ranks") -> TrialTrainer:
    """Returns what trains the model, whose start is made where it is not there yet."""
    name = model.replace(",", "").replace(" ", "-")
    job = TrialJob.prepared(work / name, BENCH_TASKS.get(model))
    if model == LARGE and not job.start.exists():
        _grow_start(job, prepared_trainer(work, ADDITION, ranks).job.start)
    job = replace(job, held_out=job.held_out.taken(NUM_HELD_OUT[model]))
    trainer = TrialTrainer(
        job=job, ranks=ranks, num_rows=NUM_ROWS[model], eval_interval=EVAL_INTERVAL[model]
    )
    make_start(trainer)
    return trainer


def _grow_start(job: TrialJob, small: Path) -> None:
    """Replaces the untrained model of the example, and grows the start from that of the small one.

    Imitation would take such a model half an hour.
    """
    from benchmarks.algorithms.beside.grown import grown_weights
    from benchmarks.overhead.untrained_model import write_untrained_model

    shutil.rmtree(job.untrained)
    write_untrained_model(
        job.untrained,
        seed=1,
        max_position_embeddings=256,
        rope_parameters={"rope_type": "default", "rope_theta": 10.0},
        **LARGE_SHAPE,
    )
    save(grown_weights(small, job.untrained), job.untrained, job.start)


def our_course(
    trainer: TrialTrainer, algorithm: str, model: str, *, seed: int, num_steps: int
) -> Course:
    """Trains with our learner."""
    trial = trial_of(algorithm, model)
    if trial.is_on_data:
        of_data = DataTrainer(job=trainer.job, ranks=trainer.ranks)
        run = of_data.run(trial, seed=seed, num_steps=num_steps)
    else:
        run = trainer.run(trial, seed=seed, lag=0, num_steps=num_steps)
    return Course(
        contender=OURS,
        algorithm=algorithm,
        model=model,
        seed=seed,
        num_rows=trainer.num_rows,
        start=run.start,
        accuracies=run.accuracies,
        seconds=run.training_seconds,
        whole_seconds=run.seconds,
    )
