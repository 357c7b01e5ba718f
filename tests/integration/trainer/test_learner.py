"""A train step is the whole optimizer batch, however it is cut."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from services.trainer.learner.microbatches import micro_batches
from services.trainer.learner.prepared_batch import row_units
from tests.integration.trainer.learners import (
    Build,
    assert_close,
    assert_same,
    gradients_of,
    stepped,
    weights_of,
)
from tests.unit.trainer.builders import grpo_plan, make_plan, random_batch, random_pairs
from trinity.config.plan.stage_plan import StagePlan

BATCH = random_batch(16, seed=5)


def plan_of(model: Path, max_tokens: int = 8192, /, **algorithm: object) -> StagePlan:
    grpo = {"algorithm_type": "grpo", "repeat_times": 8, **algorithm}
    return make_plan(model, grpo, {"max_token_len_per_gpu": max_tokens})


def test_figures_are_of_the_whole_batch_however_it_is_cut(learner_of: Build, model: Path) -> None:
    at_once, in_parts = (stepped(learner_of(plan_of(model, n)), BATCH) for n in (8192, 80))
    for name in ("actor/loss", "actor/grad_norm", "actor/ppo_kl", "actor/entropy"):
        assert in_parts[name] == pytest.approx(at_once[name], rel=1e-4, abs=1e-6)


def test_the_same_step_twice_is_the_same_bit_for_bit(learner_of: Build, model: Path) -> None:
    left, right = learner_of(plan_of(model)), learner_of(plan_of(model))
    assert stepped(left, BATCH)["actor/loss"] == stepped(right, BATCH)["actor/loss"]
    assert_same(weights_of(left), weights_of(right))


def test_rows_without_trained_tokens_change_nothing(learner_of: Build, model: Path) -> None:
    with_dummies, without = learner_of(plan_of(model)), learner_of(plan_of(model))
    dummies = [replace(row, mask=np.zeros_like(row.mask)) for row in random_batch(3, seed=9).rows]
    stepped(with_dummies, replace(BATCH, rows=[*BATCH.rows, *dummies]))
    stepped(without, BATCH)
    assert_same(weights_of(with_dummies), weights_of(without))


@pytest.mark.parametrize("kind", ["grpo", "sft", "dpo"])
@pytest.mark.parametrize("packed", [True, False])
def test_a_batch_without_a_token_to_train_on_has_no_gradient(
    learner_of: Build, model: Path, kind: str, packed: bool
) -> None:
    """A rank without rows computes so, for its fellows."""
    made = random_pairs(3) if kind == "dpo" else BATCH
    rows = [replace(row, mask=np.zeros_like(row.mask)) for row in made.rows]
    plan = make_plan(model, {"algorithm_type": kind}, {"use_remove_padding": packed})
    gradients = gradients_of(learner_of(plan), replace(made, rows=rows))
    assert gradients
    assert not any(gradient.any() for gradient in gradients.values())


def test_a_rows_weight_scales_its_loss(learner_of: Build, model: Path) -> None:
    silent = [replace(row, weight=0.0) for row in BATCH.rows[1:]]
    metrics = stepped(learner_of(plan_of(model)), replace(BATCH, rows=[*BATCH.rows[:1], *silent]))
    twice = replace(BATCH.rows[0], weight=2.0)
    doubled = stepped(learner_of(plan_of(model)), replace(BATCH, rows=[twice, *silent]))
    assert doubled["actor/loss"] == pytest.approx(2 * metrics["actor/loss"], rel=1e-5)


def test_the_learning_rate_is_exactly_the_given_one(learner_of: Build, model: Path) -> None:
    plan = plan_of(model, optimizer={"lr": 1e-3, "lr_warmup_steps": 4, "weight_decay": 0.0})
    learner = learner_of(plan)
    before = weights_of(learner)
    metrics = stepped(learner, BATCH, rate=plan.learning_rate(1, 10))
    moved = max(np.abs(weights_of(learner)[name] - before[name]).max() for name in before)
    assert metrics["actor/lr"] == 1e-3 / 4
    assert moved == pytest.approx(1e-3 / 4, rel=1e-2)  # Adam's first step moves by the rate


def test_a_gradient_that_is_not_finite_moves_nothing(learner_of: Build, model: Path) -> None:
    learner = learner_of(plan_of(model))
    before = weights_of(learner)
    broken = replace(BATCH.rows[0], advantages=np.full_like(BATCH.rows[0].advantages, np.inf))
    metrics = stepped(learner, replace(BATCH, rows=[broken, *BATCH.rows[1:]]))
    assert not np.isfinite(metrics["actor/grad_norm"])
    assert all(np.array_equal(weights_of(learner)[name], before[name]) for name in before)


def test_a_long_gradient_is_clipped(learner_of: Build, model: Path) -> None:
    plan = make_plan(model, {"algorithm_type": "grpo", "repeat_times": 8}, {"grad_clip": 1e-6})
    learner = learner_of(plan)
    assert stepped(learner, BATCH)["actor/grad_norm"] > 1e-6


def test_the_reference_stays_at_the_starting_weights(learner_of: Build, model: Path) -> None:
    learner = learner_of(plan_of(model, kl_loss_fn="k2", kl_loss_fn_args={"kl_coef": 0.1}))
    first, second = stepped(learner, BATCH), stepped(learner, BATCH)
    assert first["actor/kl_loss"] == pytest.approx(0.0, abs=1e-10)
    assert second["actor/kl_loss"] > 1e-6
    assert second["actor/loss"] == pytest.approx(
        second["actor/pg_loss"] + 0.1 * second["actor/kl_loss"], rel=1e-5
    )


def test_feedback_names_every_trained_row(learner_of: Build, model: Path) -> None:
    plan = make_plan(model, {"algorithm_type": "grpo"}, {"recorded_token_share": 1.0})
    outcome = learner_of(plan).train_step(BATCH, 1e-3)
    assert sorted(outcome.rows) == [row.position for row in BATCH.rows]
    for row in BATCH.rows:
        found = outcome.rows[row.position]
        assert found.advantage == pytest.approx(float(row.advantages[0]), rel=1e-5)
        assert found.mean_ratio > 0
        assert found.tokens is not None
        assert np.array_equal(np.isnan(found.tokens.logprobs_T), ~row.mask)
        ratios = np.exp(found.tokens.logprobs_T - row.rollout_logprobs)[row.mask]
        assert ratios.mean() == pytest.approx(found.mean_ratio, rel=1e-4)
        assert np.array_equal(found.tokens.advantages_T[row.mask], row.advantages[row.mask])


def test_logprobs_are_taken_at_the_rollouts_temperature(learner_of: Build, model: Path) -> None:
    hot = [replace(row, temperature=2.0) for row in BATCH.rows]
    cold = stepped(learner_of(plan_of(model)), BATCH)["actor/entropy"]
    assert stepped(learner_of(plan_of(model)), replace(BATCH, rows=hot))["actor/entropy"] > cold


def test_exported_weights_are_the_models_own_names(learner_of: Build, model: Path) -> None:
    from safetensors.numpy import load_file

    exported = weights_of(learner_of(grpo_plan(model)))
    saved = load_file(model / "model.safetensors")
    assert exported.keys() == saved.keys()
    assert all(np.array_equal(exported[name], saved[name]) for name in saved)


@pytest.mark.parametrize(("max_tokens", "num_calls"), [(8192, 1), (190, 2), (80, 4)])
def test_the_budget_decides_the_number_of_calls(max_tokens: int, num_calls: int) -> None:
    assert len(micro_batches(BATCH.rows, row_units(BATCH.rows), max_tokens)) == num_calls


@pytest.mark.parametrize("kind", ["grpo", "ppo"])
def test_activations_that_are_computed_again_give_the_same_gradients(
    learner_of: Build, model: Path, kind: str
) -> None:
    algorithm = {"algorithm_type": kind, "repeat_times": 8}
    again: dict[str, object] = {
        "enable_gradient_checkpointing": True,
        "critic": {"enable_gradient_checkpointing": True},
    }
    kept = gradients_of(learner_of(make_plan(model, algorithm, {})), BATCH)
    learner = learner_of(make_plan(model, algorithm, again))
    modules = [learner._roles.actor.worker.engine.module]
    if learner._roles.critic is not None:
        modules.append(learner._roles.critic._worker.engine.module)
    assert len(modules) == (2 if kind == "ppo" else 1)
    assert all(module.is_gradient_checkpointing for module in modules)
    assert_close(gradients_of(learner, BATCH), kept)


@pytest.mark.parametrize(
    ("name", "metric", "at_first"),
    [
        ("kto", "critic/advantages/max", 0.1 / 4),
        ("online_dpo", "advantage/online_dpo/margin", 0.0),
    ],
)
def test_answers_are_measured_against_the_weights_that_the_stage_began_with(
    learner_of: Build, model: Path, name: str, metric: str, at_first: float
) -> None:
    learner = learner_of(make_plan(model, {"algorithm_type": name, "repeat_times": 8}))
    before = weights_of(learner)
    first, second = stepped(learner, BATCH), stepped(learner, replace(BATCH, step=2))
    assert first[metric] == pytest.approx(at_first, abs=1e-6)
    assert abs(second[metric] - at_first) > 1e-5
    assert any((weights_of(learner)[key] != before[key]).any() for key in before)
