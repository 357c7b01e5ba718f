"""Batches of given rows, in another order each pass."""

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import count, islice
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.algorithms.job import TrialJob, Unit, encoded
from benchmarks.algorithms.outcome import CURVE_INTERVAL, EVAL_INTERVAL, NUM_ROWS, TrialRun
from benchmarks.algorithms.play import TaskPlayer
from benchmarks.algorithms.rollout import Sampler
from benchmarks.algorithms.tasks import Row
from benchmarks.algorithms.train import weights_of
from benchmarks.algorithms.trials import Trial
from examples.addition.problems import has_carry
from services.trainer.types import TrainBatch
from trinity.algorithm.algorithm_type import RowSchema
from trinity.algorithm.types import ALGORITHM_TYPES
from trinity.config.schema.base import Args
from trinity.types import FloatArray

if TYPE_CHECKING:
    from services.trainer.collectives import Ranks
COLUMNS: Mapping[RowSchema, Mapping[str, str]] = {
    "sft": {"prompt_key": "question", "response_key": "answer"},
    "cpt": {"prompt_key": "text"},
    "dpo": {"prompt_key": "question", "chosen_key": "answer", "rejected_key": "wrong"},
}
WRONG_BY = 10
WITH_LOSS = ("sft", "cpt", "dpo")
"""The types with a formula of their loss here; the figure of the others is their accuracy."""


def batches(units: Sequence[Unit], num_units: int, seed: int) -> Iterator[TrainBatch]:
    """Yields batches without end, from step 1 on; a pass leaves out rows that fill none."""
    order, steps = random.Random(seed), count(1)
    while True:
        shuffled = order.sample(units, len(units))
        for start in range(0, len(units) - num_units + 1, num_units):
            yield batch_of(shuffled[start : start + num_units], next(steps))


def batch_of(units: Sequence[Unit], step: int) -> TrainBatch:
    """The two rows of a pair have one position."""
    rows = [replace(row, position=place) for place, unit in enumerate(units) for row in unit]
    return TrainBatch(step=step, rows=rows, metrics={}, replayed=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataTrainer:
    """Trains on data, one trial after the other.

    run = DataTrainer(job=job, ranks=ranks).run(trial, seed=1, num_steps=40)
    """

    job: TrialJob
    ranks: "Ranks"

    def run(self, trial: Trial, *, seed: int, num_steps: int) -> TrialRun:
        """Trains from the warm start; pairs are half as many as rows."""
        from services.trainer.learner.learner import Learner

        began = time.process_time()
        schema = ALGORITHM_TYPES.get(trial.algorithm_type).schema
        train, held_out = _units(self.job, schema)
        task = self.job.task
        num_units = (NUM_ROWS if task is None else task.num_rows) // len(train[0])
        interval = EVAL_INTERVAL if task is None else CURVE_INTERVAL
        plan = self.job.plan(trial, seed=seed, num_rows=num_units, lag=0)
        learner = Learner(plan=plan, model_directory=self.job.start, ranks=self.ranks)
        sampler, player = Sampler(self.job.start), TaskPlayer(self.job)
        loss = None
        if trial.algorithm_type in WITH_LOSS:
            loss = _loss_on(held_out, sampler, plan.algorithm.policy_loss_fn_args)
        start = player.accuracy(sampler, self.job.held_out)
        run = TrialRun(trial=trial.name, lag=0, seed=seed, num_steps=num_steps, start=start)
        if loss is not None:
            run.losses[0] = loss()
        for batch in islice(batches(train, num_units, seed), num_steps):
            learner.train_step(batch, plan.learning_rate(batch.step))
            if batch.step % interval == 0 or batch.step == num_steps:
                sampler.load(weights_of(learner))
                if loss is not None:
                    run.losses[batch.step] = loss()
                run.accuracies[batch.step] = player.accuracy(sampler, self.job.held_out)
        run.seconds = round(time.process_time() - began, 1)
        return run


@cache
def _units(job: TrialJob, schema: RowSchema) -> tuple[list[Unit], list[Unit]]:
    """Returns the units to train on and the held-out ones."""
    formatter = job.formatter(schema, COLUMNS[schema])
    texts = [*job.train.texts, *job.held_out.texts]
    units = encoded(formatter, [_with_more_columns(text) for text in texts])
    return units[: len(job.train.texts)], units[len(job.train.texts) :]


def _with_more_columns(row: Row) -> Row:
    """The problem as one text, and an answer that is off by ten: too small where ones carry."""
    if "wrong" in row:
        return {**row, "text": row["question"] + row["answer"]}
    first, second = (int(number) for number in row["question"].rstrip("=").split("+"))
    wrong = first + second + (-WRONG_BY if has_carry((first, second)) else WRONG_BY)
    return {**row, "text": row["question"] + row["answer"], "wrong": str(wrong)}


def _loss_on(units: Sequence[Unit], sampler: Sampler, arguments: Args) -> Callable[[], float]:
    """Loss of the sampler's weights, by the formula: of tokens, or of pairs against the start."""
    rows = [row for unit in units for row in unit]

    def logprobs() -> Sequence[FloatArray]:
        return sampler.logprobs([row.tokens for row in rows], [row.prompt_length for row in rows])

    if rows[0].side is None:
        return lambda: -float(np.concatenate(logprobs()).mean())
    first = _margins(logprobs())
    beta = float(str(arguments["beta"]))
    return lambda: float(np.logaddexp(0.0, -beta * (_margins(logprobs()) - first)).mean())


def _margins(logprobs: Sequence[FloatArray]) -> FloatArray:
    """Returns the log-probability of each pair's chosen answer less that of the rejected one."""
    sums_N = np.array([of_row.sum() for of_row in logprobs], dtype=np.float32)
    margins_P: FloatArray = sums_N[::2] - sums_N[1::2]
    return margins_P
