"""Warnings fire when a step went wrong, and only then."""

import contextlib
import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np
import pytest

from services.trainer.rank.loop import TrainingLoop
from services.trainer.telemetry import AnomalyChecks, has_trained_tokens
from services.trainer.types import RunReward, StepOutcome, TrainBatch, batch_metrics
from tests.unit.config.builders import config
from tests.unit.trainer.builders import random_batch
from trinity.config.planning import plan_experiment
from trinity.errors import RunFailed

USUAL = {"actor/grad_norm": 1.0, "actor/ppo_kl": 0.01, "actor/kl": 0.02}


def check(watch: AnomalyChecks, batch: TrainBatch, **changed: float) -> set[str]:
    metrics = USUAL | {f"actor/{name}": value for name, value in changed.items()}
    return {name for name in watch.check_step(batch, metrics) if name.startswith("warning/")}


@pytest.fixture
def watch() -> AnomalyChecks:
    return AnomalyChecks()


def test_an_ordinary_step_gives_no_warning(watch: AnomalyChecks) -> None:
    assert [check(watch, random_batch(4)) for _ in range(10)] == [set()] * 10


@pytest.mark.parametrize("norm", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_warns(watch: AnomalyChecks, norm: float) -> None:
    assert check(watch, random_batch(4), grad_norm=norm) == {"warning/non_finite_gradient"}


def test_figures_that_are_no_numbers_are_not_reported(watch: AnomalyChecks) -> None:
    assert "actor/grad_norm" not in watch.check_step(
        random_batch(4), USUAL | {"actor/grad_norm": math.nan}
    )


def rewarded(*rewards: tuple[str, int, float]) -> TrainBatch:
    """Rows of these assignments, runs and rewards, all with an advantage."""
    batch = random_batch(len(rewards))
    rows = [
        replace(row, run_reward=RunReward(assignment_id=assignment, run=run, reward=reward))
        for row, (assignment, run, reward) in zip(batch.rows, rewards, strict=True)
    ]
    return replace(batch, rows=rows)


def test_equal_rewards_within_every_task_warn_whatever_the_advantages(watch: AnomalyChecks) -> None:
    batch = rewarded(("a", 0, 1.0), ("a", 1, 1.0), ("b", 0, 0.0), ("b", 1, 0.0))
    assert check(watch, batch) == {"warning/zero_reward_variance"}


def test_one_task_with_different_rewards_is_enough(watch: AnomalyChecks) -> None:
    batch = rewarded(("a", 0, 1.0), ("a", 1, 0.5), ("b", 0, 0.0), ("b", 1, 0.0))
    flat = [replace(row, advantages=np.zeros_like(row.advantages)) for row in batch.rows]
    assert check(watch, replace(batch, rows=flat)) == set()


def test_a_single_run_has_no_others_to_differ_from(watch: AnomalyChecks) -> None:
    assert check(watch, rewarded(("a", 0, 1.0), ("a", 0, 1.0), ("b", 3, 0.0))) == set()


def test_training_data_has_no_rewards_to_warn_about(watch: AnomalyChecks) -> None:
    batch = random_batch(4)
    flat = [replace(row, advantages=np.zeros_like(row.advantages)) for row in batch.rows]
    assert check(watch, replace(batch, rows=flat)) == set()


@pytest.mark.parametrize("name", ["ppo_kl", "kl"])
def test_a_jump_of_the_divergence_warns(watch: AnomalyChecks, name: str) -> None:
    for _ in range(5):
        check(watch, random_batch(4))
    assert check(watch, random_batch(4), **{name: 0.9}) == {"warning/kl_spike"}


def test_a_term_of_the_loss_is_no_divergence_as_it_is_added_up_in_the_users_way(
    watch: AnomalyChecks,
) -> None:
    for _ in range(5):
        check(watch, random_batch(4), kl_loss=0.02)
    assert check(watch, random_batch(4), kl_loss=0.9) == set()


def test_a_slow_rise_of_the_divergence_is_no_spike(watch: AnomalyChecks) -> None:
    rising = [0.01 * 1.2**step for step in range(20)]
    assert all(check(watch, random_batch(4), ppo_kl=kl) == set() for kl in rising)


def masked(batch: TrainBatch, num_masked: int) -> TrainBatch:
    rows = [
        replace(row, mask=np.zeros_like(row.mask), is_truncated=True) if i < num_masked else row
        for i, row in enumerate(batch.rows)
    ]
    return replace(batch, rows=rows)


def test_rows_with_nothing_to_train_are_counted_at_their_first_batch(watch: AnomalyChecks) -> None:
    assert check(watch, random_batch(4)) == set()
    first = watch.check_step(masked(random_batch(4), 3), USUAL)
    assert first["warning/untrained_rows"] == 3.0
    assert check(watch, masked(random_batch(4), 3)) == set()


def test_a_step_with_nothing_to_train_fails_or_is_left_out() -> None:
    untrained = masked(random_batch(4), 4)
    assert has_trained_tokens(masked(random_batch(4), 3), may_lack=False)
    with pytest.raises(RunFailed, match="no token of its 4 rows is trained; 4 of them are cut off"):
        has_trained_tokens(untrained, may_lack=False)
    assert not has_trained_tokens(untrained, may_lack=True)
    assert not has_trained_tokens(replace(untrained, rows=[]), may_lack=True)


def test_the_figures_of_a_step_without_rows_can_be_reported(watch: AnomalyChecks) -> None:
    nothing = replace(random_batch(4), rows=[], num_bad_rows=4)
    figures = batch_metrics(nothing, max_prompt_tokens=8, max_response_tokens=8)
    reported = watch.check_step(nothing, figures)
    assert reported["train/num_rows"] == reported["train/num_trained_tokens"] == 0.0
    assert reported["train/num_bad_rows"] == reported["warning/untrained_rows"] == 4.0


class NeverTrained:
    """A learner that must not be asked to train."""

    def train_step(self, *_: object) -> NoReturn:
        raise AssertionError("a step with nothing to train reached the learner")


def loop_with(on_bad_row: str) -> TrainingLoop:
    rows = {"trainer_input": {"experience_buffer": {"on_bad_row": on_bad_row}}}
    plan = plan_experiment(config(buffer=rows)).stages[0]
    stand_ins: Any = SimpleNamespace(
        plan=plan,
        life=SimpleNamespace(step=0, checkpoint=None, lineage_sha256=bytes(32)),
        learner=NeverTrained(),
        telemetry=SimpleNamespace(training=lambda _: contextlib.nullcontext()),
        total_steps=None,
    )
    return TrainingLoop(stand_ins)


def test_a_run_ends_at_a_step_with_nothing_to_train_or_passes_it_without_the_learner() -> None:
    untrained = masked(random_batch(4), 4)
    with pytest.raises(RunFailed, match="on_bad_row: skip"):
        loop_with("fail")._train_step(untrained)
    assert loop_with("skip")._train_step(untrained) == StepOutcome(metrics={}, rows={})
    with pytest.raises(AssertionError, match="reached the learner"):
        loop_with("skip")._train_step(random_batch(4))
