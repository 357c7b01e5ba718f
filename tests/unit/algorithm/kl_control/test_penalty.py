"""The penalty takes the divergence off the rewards, by the same estimators as the loss."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from verl.trainer.ppo.core_algos import kl_penalty_forward

from tests.unit.algorithm.rollout_correction.gaps import random_gap
from tests.unit.subtests import as_subtests
from trinity.algorithm.kl.estimators import KL_ESTIMATORS
from trinity.algorithm.kl.penalty import ESTIMATORS, KlPenalty, kl_penalty
from trinity.errors import UserError

NAMES_IN_VERL = {"k1": "kl", "k2": "mse", "abs": "abs", "low_var_kl": "low_var_kl"}


def penalty(estimator: str, seed: int = 0, *, size: float = 1.0, coef: float = 0.1) -> KlPenalty:
    """`rollout_BT` of the gap stands for the reference."""
    gap = random_gap(seed, size=size)
    return kl_penalty(
        np.ones(gap.mask_BT.shape),
        estimator=estimator,
        coef=coef,
        logprobs_BT=gap.proximal_BT,
        reference_logprobs_BT=gap.rollout_BT,
        mask_BT=gap.mask_BT,
        rollout_logprobs_BT=gap.proximal_BT + 0.3,
    )


@as_subtests("name", sorted(KL_ESTIMATORS.keys() - {"none"}))
@as_subtests("size", [0.5, 30.0])
def test_estimators_have_the_values_of_those_with_a_gradient(name: str, size: float) -> None:
    gap = random_gap(3, size=size)
    tensors = [torch.tensor(x) for x in (gap.proximal_BT, gap.rollout_BT, gap.proximal_BT + 0.3)]
    args = tensors if name.startswith("corrected") else tensors[:2]
    expected_BT = 1 - 0.1 * np.where(gap.mask_BT, KL_ESTIMATORS[name](*args).numpy(), 0.0)
    rewards_BT = penalty(name, 3, size=size).rewards_BT
    np.testing.assert_allclose(rewards_BT, expected_BT, rtol=1e-9)


@pytest.mark.parametrize(("name", "name_in_verl"), NAMES_IN_VERL.items())
def test_estimators_that_verl_has_are_verls(name: str, name_in_verl: str) -> None:
    gap = random_gap(2, size=3.0)
    proximal, reference, _ = gap.tensors(torch.float64)
    kl_BT = kl_penalty_forward(proximal, reference, name_in_verl).numpy()
    rewards_BT = penalty(name, 2, size=3.0).rewards_BT
    np.testing.assert_allclose(rewards_BT, 1 - 0.1 * np.where(gap.mask_BT, kl_BT, 0.0), rtol=1e-9)


def test_every_estimator_of_the_loss_is_one_of_the_penalty() -> None:
    assert KL_ESTIMATORS.keys() - {"none"} <= ESTIMATORS.keys()


def test_the_correction_multiplies_by_the_ratio_up_to_two() -> None:
    for gap, factor in ((-0.3, math.exp(-0.3)), (5.0, 2.0)):
        zeros_BT, mask_BT = np.zeros((1, 1)), np.ones((1, 1), np.bool_)
        corrected = partial(
            kl_penalty,
            zeros_BT,
            estimator="corrected_k3",
            coef=1.0,
            logprobs_BT=zeros_BT,
            reference_logprobs_BT=zeros_BT + 1,
            mask_BT=mask_BT,
        )
        kl = corrected(rollout_logprobs_BT=zeros_BT - gap).kl
        assert kl == pytest.approx(factor * (math.e - 2))
        assert corrected().kl == pytest.approx(math.e - 2)


def test_what_is_observed_is_the_mean_over_rows_of_their_means() -> None:
    gap = random_gap(4, empty=True)
    result = kl_penalty(
        np.zeros(gap.mask_BT.shape),
        estimator="k2",
        coef=0.5,
        logprobs_BT=gap.proximal_BT,
        reference_logprobs_BT=gap.rollout_BT,
        mask_BT=gap.mask_BT,
    )
    rows = [
        np.mean([0.5 * (p - r) ** 2 for p, r, m in zip(*row, strict=True) if m])
        for row in zip(gap.proximal_BT, gap.rollout_BT, gap.mask_BT, strict=True)
        if row[2].any()
    ]
    assert result.kl == pytest.approx(np.mean(rows))
    assert dict(result.metrics) == {"kl": result.kl, "kl_coef": 0.5}


@as_subtests("name", ESTIMATORS)
def test_masked_tokens_keep_their_rewards_whatever_stands_there(name: str) -> None:
    gap = random_gap(1)
    spoilt = np.where(gap.mask_BT, gap.rollout_BT, np.nan)
    result = kl_penalty(
        np.ones(gap.mask_BT.shape),
        estimator=name,
        coef=0.1,
        logprobs_BT=gap.proximal_BT,
        reference_logprobs_BT=spoilt,
        mask_BT=gap.mask_BT,
    )
    assert (result.rewards_BT[~gap.mask_BT] == 1).all()
    assert np.isfinite(result.rewards_BT).all()


def test_a_batch_without_tokens_has_no_divergence() -> None:
    zeros_BT = np.zeros((3, 4))
    result = kl_penalty(
        zeros_BT,
        estimator="k3",
        coef=0.1,
        logprobs_BT=zeros_BT,
        reference_logprobs_BT=zeros_BT,
        mask_BT=np.zeros((3, 4), np.bool_),
    )
    assert result.kl == 0.0


def test_an_unknown_estimator_is_named_with_those_there_are() -> None:
    with pytest.raises(UserError, match="kl_penalty_fn 'k9' is none of k1, k2, k3"):
        penalty("k9")
