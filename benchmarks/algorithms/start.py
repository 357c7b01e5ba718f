"""The model that all trials start from, and the one that distillation learns from."""

from itertools import islice

from benchmarks.algorithms.data import batches
from benchmarks.algorithms.job import SEED
from benchmarks.algorithms.train import TrialTrainer, save, weights_of
from benchmarks.algorithms.trials import Trial, all_trials

WARM_UP = Trial(
    name="warm-up",
    algorithm={
        "algorithm_type": "sft",
        "optimizer": {"lr": 1.0e-3, "lr_warmup_steps": 20},
    },
)
"""Stage `sft_warmup` of the addition example."""
NUM_ROWS, NUM_STEPS = 128, 400
NUM_TEACHER_STEPS = 400
TEACHER_SEED = 1000


def make_start(
    trainer: TrialTrainer, *, warm_up: Trial = WARM_UP, num_steps: int = NUM_STEPS
) -> None:
    """Imitation of the hasty teacher, as in the example; nothing if it is there."""
    from services.trainer.learner.learner import Learner

    job = trainer.job
    if job.start.exists():
        return
    plan = job.plan(warm_up, seed=SEED, num_rows=NUM_ROWS, lag=0)
    learner = Learner(plan=plan, model_directory=job.untrained, ranks=trainer.ranks)
    units = job.shown()
    for batch in islice(batches(units, NUM_ROWS, SEED), num_steps):
        learner.train_step(batch, plan.learning_rate(batch.step))
    save(weights_of(learner), job.untrained, job.start)


def make_teacher(trainer: TrialTrainer) -> None:
    """GRPO for longer than any trial; nothing if it is there."""
    if not trainer.job.teacher.exists():
        grpo = all_trials()["grpo"]
        trainer.run(
            grpo,
            seed=TEACHER_SEED,
            lag=0,
            num_steps=NUM_TEACHER_STEPS,
            save_to=trainer.job.teacher,
        )
