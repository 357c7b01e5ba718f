"""A train step that is an explore step takes as many updates as its samples need."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from services.trainer.types import TrainBatch
from tests.integration.trainer.learners import (
    RATE,
    Build,
    assert_same,
    critic_weights_of,
    stepped,
    weights_of,
)
from tests.unit.trainer.builders import make_plan, random_batch
from trinity.config.plan.stage_plan import StagePlan

if TYPE_CHECKING:
    from services.trainer.learner.learner import Learner

NUM_ROWS = 37
BATCH = random_batch(NUM_ROWS, seed=5)
"""Of a size of 16, they are three updates of 12, 12 and 13 rows."""
ENDS = (0, 12, 24, 37)


def plan_of(model: Path, kind: str = "grpo", /, passes: int = 1, **algorithm: object) -> StagePlan:
    """A stage whose train steps are explore steps, with updates of at most 16 rows."""
    trainer = {"ppo_epochs": passes, "critic": {"ppo_epochs": passes}}
    settings = {"algorithm_type": kind, "repeat_times": 8, **algorithm}
    return make_plan(model, settings, trainer).with_train_step("explore_step")


def part(batch: TrainBatch, first: int, end: int) -> TrainBatch:
    return replace(batch, rows=batch.rows[first:end])


PARTS = [part(BATCH, first, end) for first, end in pairwise(ENDS)]


@pytest.mark.parametrize(
    "loss_agg_mode", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
)
def test_updates_of_uneven_size_are_steps_on_their_rows_alone_bit_for_bit(
    learner_of: Build, model: Path, loss_agg_mode: str
) -> None:
    """Each is divided by its own tokens and rows; old log-probabilities are the rollouts'."""
    plan = plan_of(model, kl_loss_fn="none", loss_agg_mode=loss_agg_mode)
    learner, by_hand = learner_of(plan), learner_of(plan)
    found = stepped(learner, BATCH)
    figures = [stepped(by_hand, rows) for rows in PARTS]
    assert_same(weights_of(learner), weights_of(by_hand))
    assert found["actor/num_updates"] == 3
    assert [one["actor/num_updates"] for one in figures] == [1, 1, 1]
    losses = [one["actor/loss"] for one in figures]
    assert found["actor/loss"] == pytest.approx(sum(losses) / 3, rel=1e-12)


def test_a_step_of_rows_takes_one_update_of_all_of_them(learner_of: Build, model: Path) -> None:
    """The control, and what recorded batches of the version before are trained with."""
    by_steps = plan_of(model, kl_loss_fn="none")
    whole = learner_of(by_steps.model_copy(update={"train_step": "rows"}))
    cut = learner_of(by_steps)
    assert stepped(whole, BATCH)["actor/num_updates"] == 1
    stepped(cut, BATCH)
    with pytest.raises(AssertionError):
        assert_same(weights_of(whole), weights_of(cut))
    one = random_batch(16, seed=6)
    whole, cut = (
        learner_of(by_steps.model_copy(update={"train_step": "rows"})),
        learner_of(by_steps),
    )
    stepped(whole, one)
    stepped(cut, one)
    assert_same(weights_of(whole), weights_of(cut))


def test_passes_go_over_all_updates_one_after_the_other(learner_of: Build, model: Path) -> None:
    learner = learner_of(plan_of(model, passes=2, kl_loss_fn="none"))
    by_hand = learner_of(plan_of(model, kl_loss_fn="none"))
    assert stepped(learner, BATCH)["actor/num_updates"] == 6
    for rows in [*PARTS, *PARTS]:
        stepped(by_hand, rows)
    assert_same(weights_of(learner), weights_of(by_hand))


def test_the_critic_takes_the_same_updates_towards_targets_of_before_the_step(
    learner_of: Build, model: Path
) -> None:
    learner, by_hand = learner_of(plan_of(model, "ppo")), learner_of(plan_of(model, "ppo"))
    prepared = by_hand._preparation.prepare_batch(BATCH, kl_coef=0.0)
    critic = by_hand._roles.critic
    assert critic is not None and prepared.critic is not None
    for rows in prepared.cut(3):
        critic.update(rows.prepared, RATE)
    assert stepped(learner, BATCH)["critic/num_updates"] == 3
    assert_same(critic_weights_of(learner), critic_weights_of(by_hand))


def test_rows_of_all_updates_are_compared_with_the_policy_before_the_step(
    learner_of: Build, model: Path
) -> None:
    """What is on policy is so before the first update, and figures of rollouts say just that."""
    plan = plan_of(model, bypass_old_logprobs=False, kl_loss_fn="none")
    assert stepped(learner_of(plan), PARTS[0])["actor/ppo_kl"] == 0
    assert stepped(learner_of(plan), BATCH)["actor/ppo_kl"] != 0
    bypassed = plan_of(model, kl_loss_fn="none")
    found, first = (stepped(learner_of(bypassed), rows) for rows in (BATCH, PARTS[0]))
    for name in ("off_policy/ratio/p90", "actor/rollout_logprob_diff"):
        assert found[name] == first[name], "later rows are known of moved weights alone"
    outcome = learner_of(bypassed).train_step(BATCH, RATE)
    assert len(outcome.rows) == NUM_ROWS


class Killed(Exception):
    """Stands for the death of a rank."""


def die_before_update(learner: "Learner", number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    worker: Any = learner._roles.actor.worker
    take_step: Callable[..., Any] = worker.optimizer_step
    taken = 0

    def dying(*arguments: Any) -> Any:
        nonlocal taken
        taken += 1
        if taken == number:
            raise Killed
        return take_step(*arguments)

    monkeypatch.setattr(worker, "optimizer_step", dying)


@pytest.mark.parametrize("number", [2, 3])
def test_a_step_that_was_killed_between_its_updates_ends_in_the_same_weights(
    learner_of: Build, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    plan = plan_of(model)
    learner, calm, resumed = (learner_of(plan) for _ in range(3))
    first, second = random_batch(20, seed=1, step=1), replace(BATCH, step=2)
    for whole in (learner, calm):
        stepped(whole, first)
    learner.save(tmp_path, 1)
    die_before_update(learner, number, monkeypatch)
    with pytest.raises(Killed):
        stepped(learner, second)
    half = weights_of(learner)
    resumed.load(tmp_path)
    stepped(calm, second)
    stepped(resumed, second)
    assert_same(weights_of(resumed), weights_of(calm))
    with pytest.raises(AssertionError):
        assert_same(half, weights_of(calm))
