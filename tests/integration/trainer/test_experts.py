"""Training data among rollouts has a loss of its own; rollouts are judged without it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from services.trainer.types import TrainBatch
from tests.integration.trainer.learners import Build, stepped
from tests.unit.trainer.builders import data_row, make_plan, random_batch
from trinity.config.plan.stage_plan import StagePlan

USUAL = random_batch(12, seed=6)


def mixed_batch(num_experts: int = 4) -> TrainBatch:
    generator = np.random.default_rng(2)
    experts = [
        replace(
            data_row(12 + number, generator.integers(2, 48, 4), generator.integers(2, 48, 5)),
            is_expert=True,
        )
        for number in range(num_experts)
    ]
    return replace(USUAL, rows=[*USUAL.rows, *experts])


def mixed_plan(model: Path, max_tokens: int = 8192, /, **algorithm: object) -> StagePlan:
    grpo = {"algorithm_type": "grpo", "repeat_times": 4, "kl_loss_fn": "none", **algorithm}
    plan = make_plan(model, grpo, {"max_token_len_per_gpu": max_tokens})
    mixed = plan.algorithm.model_copy(
        update={"policy_loss_fn": "mix", "policy_loss_fn_args": {"mu": 0.3, "clip_range": 0.2}}
    )
    return plan.model_copy(update={"algorithm": mixed})


@pytest.mark.parametrize(
    "algorithm",
    [
        {},
        {"advantage_fn": "reinforceplusplus"},
        {
            "bypass_old_logprobs": False,
            "rollout_correction": {"rollout_is": "token", "rollout_is_batch_normalize": True},
        },
    ],
)
def test_experts_change_nothing_of_what_rollouts_are_judged_by(
    learner_of: Build, model: Path, algorithm: dict[str, object]
) -> None:
    mixed = stepped(learner_of(mixed_plan(model, **algorithm)), mixed_batch())
    alone = stepped(learner_of(mixed_plan(model, **algorithm)), USUAL)
    same = [name for name in alone if name.startswith(("critic/", "off_policy/", "rollout_corr/"))]
    assert "critic/advantages/mean" in same
    for name in [*same, "actor/usual/pg_loss"]:
        assert mixed[name] == pytest.approx(alone[name], rel=1e-4, abs=1e-6), name
    assert mixed["actor/expert/sft_loss"] > 0


def test_a_batch_of_experts_alone_is_trained_on(learner_of: Build, model: Path) -> None:
    learner = learner_of(mixed_plan(model))
    batch = mixed_batch()
    outcome = learner.train_step(replace(batch, rows=batch.rows[12:]), 1e-3)
    assert outcome.metrics["actor/grad_norm"] > 0
    assert outcome.rows == {}


def test_feedback_is_about_rollouts_only(learner_of: Build, model: Path) -> None:
    outcome = learner_of(mixed_plan(model)).train_step(mixed_batch(), 1e-3)
    assert sorted(outcome.rows) == list(range(12))
