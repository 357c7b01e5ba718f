"""Log-probabilities by their three names: which are computed, and what comes of them."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from services.trainer.learner.prepared_batch import PreparedBatch
from services.trainer.types import TrainBatch, TrainRow
from tests.integration.trainer.learners import (
    Build,
    assert_close,
    assert_same,
    gradients_of,
    stepped,
    weights_of,
)
from tests.unit.trainer.builders import make_plan, random_batch
from trinity.config.plan.stage_plan import StagePlan

if TYPE_CHECKING:
    from services.trainer.learner.learner import Learner

BATCH = random_batch(16, seed=5)
TIS = {"bypass_old_logprobs": False, "rollout_correction": {"rollout_is": "token"}}
REJECTION = {"rollout_rs": "seq_mean_k1", "rollout_rs_threshold": "0.1_10.0"}


def plan_of(model: Path, max_tokens: int = 8192, /, **algorithm: object) -> StagePlan:
    grpo = {"algorithm_type": "grpo", "repeat_times": 4, "kl_loss_fn": "none", **algorithm}
    return make_plan(model, grpo, {"max_token_len_per_gpu": max_tokens})


def count_passes(learner: "Learner") -> dict[str, int]:
    """Forward passes without a gradient, as they are made."""
    counts = dict.fromkeys(("actor", "reference"), 0)
    workers = {"actor": learner._roles.actor.worker}
    if learner._roles.reference is not None:
        workers["reference"] = learner._roles.reference._worker
    for role, worker in workers.items():

        def counted(data: object, role: str = role, infer: object = worker.infer_batch) -> object:
            counts[role] += 1
            return infer(data)  # type: ignore[operator]

        worker.infer_batch = counted
    return counts


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        ({}, {"actor": 0, "reference": 0}),
        ({"kl_loss_fn": "k2"}, {"actor": 0, "reference": 1}),
        ({"kl_penalty_fn": "k2", "advantage_fn": "rloo"}, {"actor": 0, "reference": 1}),
        (TIS, {"actor": 1, "reference": 0}),
        ({"advantage_fn": "clipv"}, {"actor": 1, "reference": 0}),
        ({"policy_loss_fn": "kl_cov"}, {"actor": 1, "reference": 0}),
    ],
)
def test_only_the_passes_that_the_algorithm_needs_are_made(
    learner_of: Build, model: Path, algorithm: dict[str, object], expected: dict[str, int]
) -> None:
    learner = learner_of(plan_of(model, **algorithm))
    counts = count_passes(learner)
    stepped(learner, BATCH)
    assert counts == expected


@pytest.mark.parametrize("max_tokens", [190, 80])
def test_a_corrected_step_is_the_same_in_one_call_or_in_several(
    learner_of: Build, model: Path, max_tokens: int
) -> None:
    correction = {"rollout_is": "sequence", "rollout_is_batch_normalize": True, **REJECTION}
    algorithm = {"bypass_old_logprobs": False, "rollout_correction": correction}
    whole = gradients_of(learner_of(plan_of(model, **algorithm)), BATCH)
    parts = gradients_of(learner_of(plan_of(model, max_tokens, **algorithm)), BATCH)
    assert_close(whole, parts)


def test_the_correction_weighs_the_losses_of_tokens(learner_of: Build, model: Path) -> None:
    """At the first step the policy is the proximal one, so each loss is -A times its weight."""
    learner = learner_of(plan_of(model, **TIS))
    prepared = PreparedBatch.from_batch(BATCH)
    proximal_BT = learner._roles.actor.compute_outputs(prepared, ["logprobs"])["logprobs"]
    mask_BT = prepared.mask_BT
    ratios = np.exp(proximal_BT - prepared.rollout_logprobs_BT)[mask_BT]
    expected = -(np.minimum(ratios, 2.0) * prepared.advantages_BT[mask_BT]).mean()
    metrics = stepped(learner, BATCH)
    assert metrics["actor/pg_loss"] == pytest.approx(expected, rel=1e-5)
    assert metrics["actor/pg_clipfrac"] == 0.0


def test_old_logprobs_are_the_rollouts_unless_told_otherwise(
    learner_of: Build, model: Path
) -> None:
    ours = stepped(learner_of(plan_of(model)), BATCH)
    theirs = stepped(learner_of(plan_of(model, **TIS)), BATCH)
    assert ours["actor/ppo_kl"] == pytest.approx(-ours["off_policy/logprob_gap/mean"], rel=1e-5)
    assert theirs["actor/ppo_kl"] == 0.0
    assert theirs["off_policy/logprob_gap/mean"] == pytest.approx(
        ours["off_policy/logprob_gap/mean"], rel=1e-5
    )


def as_if_on_policy(learner: "Learner", batch: TrainBatch) -> TrainBatch:
    """The batch as if the learner's own weights had made it."""
    logprobs_BT = learner._roles.actor.compute_outputs(
        PreparedBatch.from_batch(batch), ["logprobs"]
    )["logprobs"]
    rows = [
        replace(row, rollout_logprobs=logprobs_BT[number, : row.response_length].astype(np.float32))
        for number, row in enumerate(batch.rows)
    ]
    return replace(batch, rows=rows)


def with_row(batch: TrainBatch, number: int, row: TrainRow) -> TrainBatch:
    return replace(batch, rows=[*batch.rows[:number], row, *batch.rows[number + 1 :]])


def test_a_rejected_row_is_as_if_it_had_been_masked(learner_of: Build, model: Path) -> None:
    plan = plan_of(model, bypass_old_logprobs=False, rollout_correction=REJECTION)
    rejecting, masking = learner_of(plan), learner_of(plan)
    batch = as_if_on_policy(masking, BATCH)
    row = batch.rows[3]
    impossible = replace(row, rollout_logprobs=np.full_like(row.rollout_logprobs, -80.0))
    silent = replace(row, mask=np.zeros_like(row.mask))
    metrics = stepped(rejecting, with_row(batch, 3, impossible))
    stepped(masking, with_row(batch, 3, silent))
    share = row.mask.sum() / batch.num_trained_tokens
    assert metrics["off_policy/mask_fraction"] == pytest.approx(share)
    assert_same(weights_of(rejecting), weights_of(masking))


def test_when_every_row_is_rejected_nothing_moves(learner_of: Build, model: Path) -> None:
    plan = plan_of(model, bypass_old_logprobs=False, rollout_correction=REJECTION)
    learner = learner_of(plan)
    before = weights_of(learner)
    rows = [
        replace(row, rollout_logprobs=np.full_like(row.rollout_logprobs, -80.0))
        for row in BATCH.rows
    ]
    metrics = learner.train_step(replace(BATCH, rows=rows), 0.0).metrics
    assert (metrics["actor/grad_norm"], metrics["actor/loss"]) == (0.0, 0.0)
    assert_same(weights_of(learner), before)


def test_figures_are_given_by_how_old_the_weights_were(learner_of: Build, model: Path) -> None:
    rows = [
        replace(row, versions=np.full(row.response_length, row.position % 2 * 4, dtype=np.int32))
        for row in BATCH.rows
    ]
    metrics = stepped(learner_of(plan_of(model)), replace(BATCH, rows=rows, step=5))
    tokens = [metrics[f"off_policy/lag_{lag}/tokens"] for lag in ("0", "4_7")]
    assert sum(tokens) == BATCH.num_trained_tokens
    assert tokens[0] == sum(int(row.mask.sum()) for row in rows if row.oldest_version == 4)


def test_the_penalty_lowers_rewards_and_its_coefficient_follows_the_target(
    learner_of: Build, model: Path
) -> None:
    steered = {"kl_coef": 0.1, "adaptive": True, "target_kl": 1e-3, "horizon": 160}
    plan = plan_of(model, advantage_fn="rloo", kl_penalty_fn="k2", kl_penalty_fn_args=steered)
    learner = learner_of(plan)
    first, second = stepped(learner, BATCH), stepped(learner, replace(BATCH, step=2))
    assert first["advantage/kl_coef"] == 0.1
    assert second["advantage/kl_coef"] == pytest.approx(0.1 * (1 + 0.2 * 16 / 160))
    lowered = first["critic/score/mean"] - first["critic/rewards/mean"]
    sums = [row.mask.sum() for row in BATCH.rows]
    assert lowered > 0.1 * first["advantage/kl"] * min(sums)
