"""Tokens that a loss treats apart are those of the batch, however it is cut and dealt."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from services.trainer.learner.advantages import select_tokens, token_selection
from services.trainer.types import TrainBatch
from tests.integration.trainer.learners import Build, assert_close, gradients_of, stepped
from tests.unit.trainer.builders import make_plan, random_batch
from trinity.config.plan.stage_plan import StagePlan

if TYPE_CHECKING:
    from services.trainer.learner.learner import Learner

BATCH = random_batch(16, seed=5)
LOSSES: dict[str, dict[str, object]] = {
    "clip_cov": {
        "bypass_old_logprobs": False,  # against the rollouts' nearly all are clipped already
        "policy_loss_fn_args": {"clip_cov_ratio": 0.2, "clip_cov_lb": 0.0},
    },
    "kl_cov": {"policy_loss_fn_args": {"kl_cov_ratio": 0.2}},
}


def plan_of(model: Path, loss: str, max_tokens: int = 8192, seed: int = 42) -> StagePlan:
    algorithm = {
        "algorithm_type": "grpo",
        "repeat_times": 4,
        "kl_loss_fn": "none",
        "policy_loss_fn": loss,
        **LOSSES[loss],
    }
    plan = make_plan(model, algorithm, {"max_token_len_per_gpu": max_tokens})
    return plan.model_copy(update={"config": plan.config.model_copy(update={"seed": seed})})


def choice_of(learner: "Learner", plan: StagePlan, batch: TrainBatch) -> np.ndarray:
    prepared = learner._preparation.prepare_batch(batch, kl_coef=0.0)
    assert prepared.selected_BT is not None
    choose = token_selection(plan.algorithm)
    assert choose is not None
    again = select_tokens(choose, prepared, plan.config.seed)
    assert np.array_equal(again, prepared.selected_BT)
    return prepared.selected_BT


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("max_tokens", [190, 80])
def test_a_step_is_the_same_in_one_call_or_in_several(
    learner_of: Build, model: Path, loss: str, max_tokens: int
) -> None:
    whole = gradients_of(learner_of(plan_of(model, loss)), BATCH)
    parts = gradients_of(learner_of(plan_of(model, loss, max_tokens)), BATCH)
    assert_close(whole, parts)


@pytest.mark.parametrize("loss", LOSSES)
def test_the_share_that_was_chosen_is_a_figure(learner_of: Build, model: Path, loss: str) -> None:
    metrics = stepped(learner_of(plan_of(model, loss)), BATCH)
    figure = {"clip_cov": "actor/pg_clipfrac", "kl_cov": "actor/kl_cov_frac"}[loss]
    expected = int(0.2 * BATCH.num_trained_tokens) / BATCH.num_trained_tokens
    assert metrics[figure] == pytest.approx(expected)


def test_rows_keep_their_lots_in_any_order_and_company(learner_of: Build, model: Path) -> None:
    """The same step of the same experiment chooses the same tokens: also when it is replayed."""
    plan = plan_of(model, "clip_cov")
    learner = learner_of(plan)
    straight = choice_of(learner, plan, BATCH)
    mixed = choice_of(learner, plan, replace(BATCH, rows=list(BATCH.rows)[::-1]))
    assert np.array_equal(mixed[::-1], straight)
    assert not np.array_equal(choice_of(learner, plan, replace(BATCH, step=2)), straight)
    other = plan_of(model, "clip_cov", seed=7)
    assert not np.array_equal(choice_of(learner_of(other), other, BATCH), straight)
