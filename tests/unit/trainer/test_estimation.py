"""Correction, penalty and advantage act in their order, each on what the one before left."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from services.trainer.estimation import EstimationFunctions, actor_outputs
from services.trainer.learner.advantages import RolloutRows, estimate_advantages
from services.trainer.learner.prepared_batch import PreparedBatch
from tests.unit.trainer.builders import make_plan, random_batch
from trinity.algorithm.rollout_correction.settings import CorrectionSettings
from trinity.algorithm.token_advantage.token_batch import (
    FloatMatrix,
    TokenAdvantages,
    TokenBatch,
)

PREPARED = PreparedBatch.from_batch(random_batch(8, seed=4))
PLAIN = EstimationFunctions(bypass=True, correction=None, penalty="none", advantage=None)


def rollouts_with(
    *, proximal_BT: FloatMatrix | None = None, reference_BT: FloatMatrix | None = None
) -> RolloutRows:
    policy = {} if proximal_BT is None else {"logprobs": proximal_BT}
    return RolloutRows.from_prepared(
        replace(PREPARED, policy=policy, reference_logprobs_BT=reference_BT), None
    )


def scores(batch: TokenBatch) -> TokenAdvantages:
    """Every token's advantage is the sum of its row's rewards."""
    everywhere_BT = np.ones(batch.mask_BT.shape) * batch.scores_B[:, None]
    return TokenAdvantages(
        advantages_BT=everywhere_BT, metrics={"seen": float(batch.mask_BT.sum())}
    )


def test_without_any_of_it_the_batch_stays_as_the_buffer_made_it() -> None:
    found = estimate_advantages(PLAIN, rollouts_with(), kl_coef=0.5)
    assert np.array_equal(found.mask_NT, PREPARED.mask_BT)
    assert np.array_equal(found.old_NT, PREPARED.rollout_logprobs_BT)
    assert np.array_equal(found.advantages_NT, PREPARED.advantages_BT)
    assert (found.corrections_NT, found.returns_NT, found.kl) == (None, None, None)


def test_the_advantage_sees_the_mask_that_the_correction_left() -> None:
    far_BT = PREPARED.rollout_logprobs_BT.copy()
    far_BT[2] += 5.0
    settings = CorrectionSettings(rollout_rs="token_k1", rollout_rs_threshold="0.5_2.0")
    recipe = replace(PLAIN, correction=settings, advantage=scores)
    found = estimate_advantages(recipe, rollouts_with(proximal_BT=far_BT), kl_coef=0.0)
    assert not found.mask_NT[2].any()
    assert found.metrics["advantage/seen"] == found.mask_NT.sum()
    assert found.mask_NT.sum() == PREPARED.mask_BT.sum() - PREPARED.mask_BT[2].sum()
    assert not found.advantages_NT[~found.mask_NT].any()


def test_a_reward_is_seen_on_the_last_token_that_the_correction_left() -> None:
    last_BT = PREPARED.mask_BT & (np.cumsum(PREPARED.mask_BT[:, ::-1], -1)[:, ::-1] == 1)
    far_BT = PREPARED.rollout_logprobs_BT + 5.0 * last_BT
    settings = CorrectionSettings(rollout_rs="token_k1", rollout_rs_threshold="0.5_2.0")

    def reached(batch: TokenBatch) -> TokenAdvantages:
        return TokenAdvantages(advantages_BT=batch.rewards_BT)

    recipe = replace(PLAIN, correction=settings, advantage=reached)
    found = estimate_advantages(recipe, rollouts_with(proximal_BT=far_BT), kl_coef=0.0)
    left_B = found.mask_NT.any(-1)
    scores_B = np.array([row.run_reward.reward for row in PREPARED.rows if row.run_reward])
    assert left_B.sum() > 4
    assert np.array_equal(found.advantages_NT.sum(-1)[left_B], scores_B[left_B])


def test_the_advantage_sees_rewards_with_the_penalty_taken_off() -> None:
    reference_BT = PREPARED.rollout_logprobs_BT - 1.0
    recipe = replace(PLAIN, penalty="k1", advantage=scores)
    free = estimate_advantages(replace(recipe, penalty="none"), rollouts_with(), kl_coef=0.25)
    found = estimate_advantages(recipe, rollouts_with(reference_BT=reference_BT), kl_coef=0.25)
    paid_B = 0.25 * PREPARED.mask_BT.sum(-1)
    expected_BT = np.where(PREPARED.mask_BT, free.advantages_NT - paid_B[:, None], 0.0)
    np.testing.assert_allclose(found.advantages_NT, expected_BT)
    assert found.kl == pytest.approx(1.0)
    assert found.metrics["critic/score/mean"] > found.metrics["critic/rewards/mean"]


@pytest.mark.parametrize("bypass", [True, False])
def test_old_logprobs_are_the_rollouts_or_the_proximal_ones(bypass: bool) -> None:
    proximal_BT = PREPARED.rollout_logprobs_BT - 0.1
    found = estimate_advantages(
        replace(PLAIN, bypass=bypass), rollouts_with(proximal_BT=proximal_BT), kl_coef=0.0
    )
    wanted_BT = PREPARED.rollout_logprobs_BT if bypass else proximal_BT
    assert np.array_equal(found.old_NT[PREPARED.mask_BT], wanted_BT[PREPARED.mask_BT])


def test_a_narrower_mask_of_the_advantage_is_the_actors_alone() -> None:
    def first_tokens(batch: TokenBatch) -> TokenAdvantages:
        narrow_BT = batch.mask_BT & (batch.mask_BT.cumsum(-1) == 1)
        return TokenAdvantages(advantages_BT=np.ones(narrow_BT.shape), mask_BT=narrow_BT)

    found = estimate_advantages(
        replace(PLAIN, advantage=first_tokens), rollouts_with(), kl_coef=0.0
    )
    assert found.mask_NT.sum(-1).tolist() == [1] * 8
    assert np.array_equal(found.critic_mask_NT, PREPARED.mask_BT)


@pytest.mark.parametrize(
    ("algorithm", "synchronizer", "outputs"),
    [
        ("on_policy_distill", {}, ()),
        ("on_policy_distill", {"sync_offset": 1}, ("logprobs", "entropies")),
        ("on_policy_distill", {"sync_interval": 2}, ("logprobs", "entropies")),
        ("grpo", {"sync_offset": 1}, ()),
    ],
)
def test_a_teacher_is_compared_with_the_policy_of_now_where_rollouts_may_be_old(
    algorithm: str, synchronizer: dict[str, int], outputs: tuple[str, ...], tmp_path: Path
) -> None:
    plan = make_plan(tmp_path, {"algorithm_type": algorithm})
    timing = plan.config.synchronizer.model_copy(update=synchronizer)
    config = plan.config.model_copy(update={"synchronizer": timing})
    assert actor_outputs(plan.model_copy(update={"config": config})) == outputs
