"""One run of a trial: an algorithm, a seed, and how old the rollouts' weights are."""

import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.algorithms.batches import BatchMaker
from benchmarks.algorithms.job import TrialJob
from benchmarks.algorithms.outcome import CURVE_INTERVAL, EVAL_INTERVAL, NUM_ROWS, TrialRun
from benchmarks.algorithms.play import TaskPlayer
from benchmarks.algorithms.rollout import Sampler, Weights
from benchmarks.algorithms.trials import Trial

if TYPE_CHECKING:
    from services.trainer.collectives import Ranks
    from services.trainer.learner.learner import Learner

FIGURES = (
    "actor/entropy",
    "actor/grad_norm",
    "actor/kl_loss",
    "actor/pg_clipfrac",
    "critic/vf_loss",
    "off_policy/clip_fraction",
    "off_policy/effective_sample_size",
    "off_policy/mask_fraction",
    "off_policy/ratio/p01",
    "off_policy/ratio/p99",
)
"""Of a step's figures those that are kept, where there are such."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialTrainer:
    """Trains trials, one after the other.

    run = TrialTrainer(job=job, ranks=ranks).run(trial, seed=1, lag=0, num_steps=100)
    """

    job: TrialJob
    ranks: "Ranks"
    num_rows: int = NUM_ROWS
    eval_interval: int | None = None
    """Steps between two points of the held-out curve; None for the usual number."""

    def run(
        self, trial: Trial, *, seed: int, lag: int, num_steps: int, save_to: Path | None = None
    ) -> TrialRun:
        """Trains from the warm start; the last weights may be kept as a model's directory."""
        from services.trainer.learner.learner import Learner

        began = time.process_time()
        plan = self.job.plan(trial, seed=seed, num_rows=self.num_rows, lag=lag)
        learner = Learner(
            plan=plan,
            model_directory=self.job.start,
            ranks=self.ranks,
            teacher_directory=None if plan.teacher_model_path is None else self.job.teacher,
        )
        sampler, player = Sampler(self.job.start), TaskPlayer(self.job)
        teacher = Sampler(self.job.teacher) if trial.has_teacher else None
        maker = BatchMaker(job=self.job, trial=trial, plan=plan, seed=seed, teacher=teacher)
        start = player.accuracy(sampler, self.job.held_out)
        run = TrialRun(trial=trial.name, lag=lag, seed=seed, num_steps=num_steps, start=start)
        kept: deque[Weights] = deque([sampler.weights()], maxlen=lag + 1)
        interval = self.eval_interval or self._usual_interval
        trained = 0.0
        for step in range(1, num_steps + 1):
            trained -= time.process_time()
            sampler.load(kept[0])
            batch, reward = maker.batch(sampler, step=step, version=step - len(kept))
            run.rewards.append(round(reward, 4))
            if batch.rows:
                outcome = learner.train_step(
                    batch, plan.learning_rate(step), plan.critic_learning_rate(step)
                )
                run.figures = {n: outcome.metrics[n] for n in FIGURES if n in outcome.metrics}
            kept.append(weights_of(learner))
            trained += time.process_time()
            if step % interval == 0 or step == num_steps:
                run.training_seconds[step] = round(trained, 2)
                sampler.load(kept[-1])
                run.accuracies[step] = player.accuracy(sampler, self.job.held_out)
        if save_to is not None:
            save(kept[-1], self.job.untrained, save_to)
        run.seconds = round(time.process_time() - began, 1)
        return run

    @property
    def _usual_interval(self) -> int:
        return EVAL_INTERVAL if self.job.task is None else CURVE_INTERVAL


def weights_of(learner: "Learner") -> Weights:
    """A copy."""
    return {name: tensor.clone() for name, tensor in learner.weights()}


def save(weights: Weights, model: Path, directory: Path) -> None:
    """The model with these weights; the directory is there once it is complete."""
    import shutil

    from safetensors.torch import save_file

    unfinished = directory.with_suffix(".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    shutil.copytree(model, unfinished)
    tensors = {name: tensor.contiguous() for name, tensor in weights.items()}
    save_file(tensors, unfinished / "model.safetensors", metadata={"format": "pt"})
    unfinished.rename(directory)
