"""Coefficients that are steered go into a checkpoint and come back; fixed ones are the plan's."""

from dataclasses import replace
from pathlib import Path

import pytest

from services.trainer.learner.advantages import KlCoefficients
from tests.unit.trainer.builders import grpo_plan
from trinity.algorithm.kl.controller import KlController, kl_controller
from trinity.errors import UserError

STEERED = KlController(coef=0.1, target_kl=1.0, horizon=100.0)
FIXED = KlController(coef=0.02)


def test_steered_coefficients_survive_a_checkpoint(tmp_path: Path) -> None:
    before = KlCoefficients(penalty=STEERED, loss=STEERED)
    moved = before.after_step(penalised=5.0, in_loss=0.0, num_rows=10)
    moved.save(tmp_path)
    assert before.load(tmp_path) == moved
    assert moved.penalty.coef > 0.1 > moved.loss.coef


def test_a_fixed_coefficient_is_the_configurations_even_after_a_checkpoint(tmp_path: Path) -> None:
    KlCoefficients(penalty=FIXED, loss=FIXED).save(tmp_path)
    changed = KlCoefficients(penalty=replace(FIXED, coef=0.5), loss=FIXED)
    assert changed.load(tmp_path) == changed


def test_a_steered_coefficient_begins_anew_where_another_is_configured(tmp_path: Path) -> None:
    def steered(coef: float) -> KlCoefficients:
        controller = kl_controller(kl_coef=coef, adaptive=True, target_kl=1.0, horizon=100.0)
        return KlCoefficients(penalty=controller, loss=controller)

    moved = steered(0.1).after_step(penalised=5.0, in_loss=5.0, num_rows=10)
    moved.save(tmp_path)
    assert steered(0.1).load(tmp_path) == moved
    assert steered(0.4).load(tmp_path) == steered(0.4)


def test_a_checkpoint_without_coefficients_leaves_those_of_the_plan(tmp_path: Path) -> None:
    control = KlCoefficients(penalty=STEERED, loss=FIXED)
    assert control.load(tmp_path) == control


def test_what_was_not_measured_steers_nothing() -> None:
    control = KlCoefficients(penalty=STEERED, loss=STEERED)
    moved = control.after_step(penalised=None, in_loss=5.0, num_rows=10)
    assert moved.penalty == STEERED
    assert moved.loss != STEERED


def test_steering_without_a_target_is_refused_before_training(tmp_path: Path) -> None:
    plan = grpo_plan(tmp_path)
    arguments = {**plan.algorithm.kl_loss_fn_args, "adaptive": True, "horizon": 100}
    algorithm = plan.algorithm.model_copy(update={"kl_loss_fn_args": arguments})
    with pytest.raises(UserError, match="target_kl"):
        KlCoefficients.from_plan(plan.model_copy(update={"algorithm": algorithm}))
