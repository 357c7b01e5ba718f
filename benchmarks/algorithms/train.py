"""One run of a trial: an algorithm, a seed, and how old the rollouts' weights are.

For a batch, problems are drawn, answered, judged, compared and made rows. A run has one step, or
two: a problem each. Then its last reward says whether both are right, and each step's own reward
whether that one is.
"""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from benchmarks.algorithms.job import IntArray, TrialJob
from benchmarks.algorithms.outcome import CURVE_INTERVAL, EVAL_INTERVAL, NUM_ROWS, TrialRun
from benchmarks.algorithms.play import TaskPlayer
from benchmarks.algorithms.rollout import Rollout, Sampler, Weights
from benchmarks.algorithms.trials import Trial
from services.trainer.types import RunReward, TrainBatch, TrainRow
from trinity.algorithm.advantage import ADVANTAGES
from trinity.algorithm.advantage.samples import Advantages, FloatVector, Samples
from trinity.config.plan.stage_plan import StagePlan

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
"""Figures of a step that are kept, where it has them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """An explore step: N rollouts in order of group, run and step."""

    samples: Samples
    problems: IntArray
    """Of each rollout, [N]."""
    rollouts: Sequence[Rollout]
    is_right: FloatVector
    """Of each rollout by itself, [N]."""


class BatchMaker:
    """Makes a step's batch with whatever weights the sampler has.

    maker = BatchMaker(job=job, trial=trial, plan=plan, seed=1, teacher=None)
    batch, reward = maker.batch(sampler, step=7, version=6)
    """

    def __init__(
        self, *, job: TrialJob, trial: Trial, plan: StagePlan, seed: int, teacher: Sampler | None
    ) -> None:
        self._job = job
        self._player = TaskPlayer(job)
        self._plan = plan
        self._teacher = teacher
        self._num_steps = trial.num_steps_of_run
        self._order = np.random.default_rng(seed)
        self._generator = torch.Generator().manual_seed(seed)

    def batch(self, sampler: Sampler, *, step: int, version: int) -> tuple[TrainBatch, float]:
        """Rows in order of position, and the mean reward of all rollouts."""
        answered = self._answered(sampler)
        rows = self._rows(answered, version)
        if self._job.hinted_prompts is not None:
            rows = _hinted(rows, sampler, self._job.hinted_prompts[answered.problems])
        rows += self._experts(len(rows))
        reward = float(answered.is_right.mean())
        return TrainBatch(step=step, rows=rows, metrics={}, replayed=False), reward

    def _answered(self, sampler: Sampler) -> Answered:
        repeat = self._plan.algorithm.repeat_times
        num_runs = self._plan.num_rollout_rows // self._num_steps
        tasks_GS = self._order.integers(
            len(self._job.train.rows), size=(num_runs // repeat, self._num_steps)
        )
        problems_GRS = np.repeat(tasks_GS[:, None], repeat, axis=1)
        problems_N = problems_GRS.reshape(-1)
        train = self._job.train
        rollouts = self._player.play(sampler, train, problems_N.tolist(), self._generator)
        right = [
            self._player.is_right(rollout, train, problem)
            for rollout, problem in zip(rollouts, problems_N.tolist(), strict=True)
        ]
        is_right_N = np.array(right, dtype=np.float64)
        return Answered(
            samples=self._samples(problems_GRS, is_right_N, rollouts),
            problems=problems_N,
            rollouts=rollouts,
            is_right=is_right_N,
        )

    def _samples(
        self, problems_GRS: IntArray, is_right_N: FloatVector, rollouts: Sequence[Rollout]
    ) -> Samples:
        """All steps of a run have its reward."""
        groups_GRS, runs_GRS, steps_GRS = np.indices(problems_GRS.shape)
        run_rewards_GR1 = is_right_N.reshape(problems_GRS.shape).min(-1, keepdims=True)
        has_steps = self._num_steps > 1
        return Samples(
            rewards=np.broadcast_to(run_rewards_GR1, problems_GRS.shape).reshape(-1),
            groups=groups_GRS.reshape(-1),
            runs=runs_GRS.reshape(-1),
            steps=steps_GRS.reshape(-1),
            lots=self._order.random(len(is_right_N)),
            mean_logprobs=np.array(
                [rollout.logprobs[rollout.is_own].mean() for rollout in rollouts]
            ),
            step_rewards=is_right_N if has_steps else np.full_like(is_right_N, np.nan),
            states=problems_GRS.reshape(-1) if has_steps else np.full(len(is_right_N), -1),
        )

    def _rows(self, answered: Answered, version: int) -> list[TrainRow]:
        """Returns the rows that the advantage does not leave out."""
        algorithm, samples = self._plan.algorithm, answered.samples
        found = Advantages(np.zeros(len(samples.rewards)))
        if not algorithm.advantage_in_trainer:
            found = ADVANTAGES.get(algorithm.advantage_fn)(samples, **algorithm.advantage_fn_args)
        is_left_out_N = np.zeros(len(samples.rewards)) if found.left_out is None else found.left_out
        rows = [
            _row(answered, number, position, float(found.values[number]), version)
            for position, number in enumerate(np.flatnonzero(is_left_out_N == 0))
        ]
        return rows if self._teacher is None else _taught(rows, self._teacher)

    def _experts(self, position: int) -> list[TrainRow]:
        """Right answers to problems drawn again."""
        drawn = self._order.integers(len(self._job.train.rows), size=self._plan.num_expert_rows)
        return [
            replace(self._job.train.rows[problem], position=position + number, is_expert=True)
            for number, problem in enumerate(drawn)
        ]


def _row(
    answered: Answered, number: int, position: int, advantage: float, version: int
) -> TrainRow:
    rollout, samples = answered.rollouts[number], answered.samples
    num_tokens = len(rollout.tokens)
    return TrainRow(
        position=position,
        tokens=np.concatenate([rollout.prompt, rollout.tokens]).astype(np.int32),
        prompt_length=len(rollout.prompt),
        mask=rollout.is_own,
        rollout_logprobs=rollout.logprobs,
        advantages=np.full(num_tokens, advantage, dtype=np.float32),
        run_reward=RunReward(
            assignment_id=str(samples.groups[number]),
            run=int(samples.runs[number]),
            reward=float(samples.rewards[number]),
        ),
        versions=(version + rollout.swaps).astype(np.int32),
    )


def _taught(rows: Sequence[TrainRow], teacher: Sampler) -> list[TrainRow]:
    found = teacher.logprobs([row.tokens for row in rows], [row.prompt_length for row in rows])
    return [
        replace(row, teacher_logprobs=logprobs) for row, logprobs in zip(rows, found, strict=True)
    ]


def _hinted(rows: Sequence[TrainRow], policy: Sampler, prompts_NP: IntArray) -> list[TrainRow]:
    """Adds how likely the policy finds each answer after the prompt with the hint."""
    answers = [row.tokens[row.prompt_length :] for row in rows]
    sequences = [
        np.concatenate([prompt, answer]) for prompt, answer in zip(prompts_NP, answers, strict=True)
    ]
    found = policy.logprobs(sequences, [prompts_NP.shape[1]] * len(rows))
    return [
        replace(row, teacher_logprobs=logprobs) for row, logprobs in zip(rows, found, strict=True)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialTrainer:
    """Trains trials, one after the other.

    run = TrialTrainer(job=job, ranks=ranks).run(trial, seed=1, lag=0, num_steps=100)
    """

    job: TrialJob
    ranks: "Ranks"
    num_rows: int = NUM_ROWS
    changes_amid_answers: bool = False
    """True if answers begin with the oldest weights and end with the newest ones."""
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
            sampler.load(*(kept if self.changes_amid_answers else (kept[0],)))
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
