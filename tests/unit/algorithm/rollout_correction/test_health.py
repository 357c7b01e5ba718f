"""Figures of off-policy health say what they are called, over all tokens and by staleness."""

import numpy as np
import pytest

from tests.unit.algorithm.rollout_correction.gaps import random_gap
from trinity.algorithm.rollout_correction.metrics import off_policy_metrics


def metrics_of(seed: int = 0, **more: np.ndarray) -> tuple[dict[str, float], np.ndarray]:
    gap = random_gap(seed, size=0.5)
    metrics = off_policy_metrics(
        logprobs_BT=gap.proximal_BT,
        rollout_logprobs_BT=gap.rollout_BT,
        mask_BT=gap.mask_BT,
        **more,
    )
    return metrics, (gap.proximal_BT - gap.rollout_BT)[gap.mask_BT]


def test_ratios_and_gaps_are_over_the_tokens_of_the_mask() -> None:
    metrics, log_ratios = metrics_of()
    ratios = np.exp(log_ratios)
    assert metrics["off_policy/tokens"] == len(ratios)
    for percent in (1, 10, 50, 90, 99):
        expected = np.percentile(ratios, percent)
        assert metrics[f"off_policy/ratio/p{percent:02d}"] == pytest.approx(expected)
    assert metrics["off_policy/ratio/mean"] == pytest.approx(ratios.mean())
    assert metrics["off_policy/ratio/min"] == pytest.approx(ratios.min())
    assert metrics["off_policy/ratio/max"] == pytest.approx(ratios.max())
    assert metrics["off_policy/logprob_gap/mean"] == pytest.approx(log_ratios.mean())
    assert metrics["off_policy/logprob_gap/abs_mean"] == pytest.approx(np.abs(log_ratios).mean())
    assert metrics["off_policy/logprob_gap/max"] == pytest.approx(np.abs(log_ratios).max())


def test_the_effective_sample_size_is_the_share_of_tokens_that_carry_the_weight() -> None:
    mask_BT = np.ones((1, 4), np.bool_)
    zeros_BT = np.zeros((1, 4))

    def share(weights: list[float] | None) -> float:
        weights_BT = None if weights is None else np.array([weights])
        metrics = off_policy_metrics(
            logprobs_BT=zeros_BT,
            rollout_logprobs_BT=zeros_BT,
            mask_BT=mask_BT,
            weights_BT=weights_BT,
        )
        return metrics["off_policy/effective_sample_size"]

    assert share(None) == pytest.approx(1.0)
    assert share([3.0, 3.0, 3.0, 3.0]) == pytest.approx(1.0)
    assert share([7.0, 0.0, 0.0, 0.0]) == pytest.approx(0.25)
    assert share([0.0, 0.0, 0.0, 0.0]) == 0.0


def test_fractions_and_entropy_are_there_where_they_are_given() -> None:
    gap = random_gap(0)
    shape, draw = gap.mask_BT.shape, np.random.default_rng(1)
    clipped_BT, kept_BT = draw.random(shape) < 0.3, gap.mask_BT & (draw.random(shape) < 0.8)
    entropies_BT = draw.random(shape)
    metrics, _ = metrics_of(clipped_BT=clipped_BT, kept_BT=kept_BT, entropies_BT=entropies_BT)
    mask_BT = gap.mask_BT
    assert metrics["off_policy/clip_fraction"] == pytest.approx(clipped_BT[mask_BT].mean())
    assert metrics["off_policy/mask_fraction"] == pytest.approx(1 - kept_BT[mask_BT].mean())
    assert metrics["off_policy/entropy"] == pytest.approx(entropies_BT[mask_BT].mean())
    assert not {"off_policy/clip_fraction", "off_policy/entropy"} & metrics_of()[0].keys()


def test_each_staleness_has_the_figures_of_its_own_tokens() -> None:
    gap = random_gap(0, size=0.5)
    ages = [0, 1, 2, 3, 4, 5, 7, 8, 15, 16, 400, -1]
    lags_BT = np.random.default_rng(3).choice(ages, size=gap.mask_BT.shape)
    metrics, _ = metrics_of(lags_BT=lags_BT)
    buckets = {"0": lags_BT <= 0, "1": lags_BT == 1, "2": lags_BT == 2, "3": lags_BT == 3}
    buckets |= {"4_7": (lags_BT >= 4) & (lags_BT < 8), "8_15": (lags_BT >= 8) & (lags_BT < 16)}
    buckets["16_up"] = lags_BT >= 16
    for name, tokens_BT in buckets.items():
        alone = off_policy_metrics(
            logprobs_BT=gap.proximal_BT,
            rollout_logprobs_BT=gap.rollout_BT,
            mask_BT=gap.mask_BT & tokens_BT,
        )
        assert alone, name
        for key, value in alone.items():
            expected_key = key.replace("off_policy/", f"off_policy/lag_{name}/")
            assert metrics[expected_key] == pytest.approx(value)


def test_a_staleness_that_no_row_has_is_left_out() -> None:
    metrics, _ = metrics_of(lags_BT=np.full(random_gap(0, size=0.5).mask_BT.shape, 2))
    lags = {key.split("/")[1] for key in metrics if key.startswith("off_policy/lag_")}
    assert lags == {"lag_2"}


def test_policies_far_apart_and_batches_without_tokens_give_no_trouble() -> None:
    gap = random_gap(0, size=1e4)
    metrics = off_policy_metrics(
        logprobs_BT=gap.proximal_BT, rollout_logprobs_BT=gap.rollout_BT, mask_BT=gap.mask_BT
    )
    assert all(np.isfinite(value) for value in metrics.values())
    nothing = off_policy_metrics(
        logprobs_BT=gap.proximal_BT,
        rollout_logprobs_BT=gap.rollout_BT,
        mask_BT=np.zeros_like(gap.mask_BT),
    )
    assert nothing == {}
