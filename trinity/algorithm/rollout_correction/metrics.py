"""Metrics of rollout correction, computed as in verl, and of the gap to the trained policy."""

from dataclasses import dataclass

import numpy as np

from trinity.algorithm.token_advantage.masked import masked, masked_mean, row_means
from trinity.algorithm.token_advantage.token_batch import (
    BoolMatrix,
    FloatMatrix,
    FloatVector,
    IntMatrix,
    IntVector,
)

LARGEST_LOG_RATIO = 20.0
"""Logarithms are clamped to this before they are exponentiated."""
PERCENTILES = (1, 10, 50, 90, 99)
LAG_STARTS = (0, 1, 2, 3, 4, 8, 16)
"""Each bucket covers the lags from one start up to the next; the last is open-ended."""
LAG_NAMES = ("0", "1", "2", "3", "4_7", "8_15", "16_up")


def clamped(log_ratio: FloatMatrix) -> FloatMatrix:
    """Clamps on both sides."""
    return np.clip(log_ratio, -LARGEST_LOG_RATIO, LARGEST_LOG_RATIO)


def clamped_exp(logarithms: FloatMatrix) -> FloatMatrix:
    """Returns exp, clamped from above."""
    powers: FloatMatrix = np.exp(np.minimum(logarithms, LARGEST_LOG_RATIO))
    return powers


def masked_std(values_BT: FloatMatrix, mask_BT: BoolMatrix) -> float:
    """Returns the population's standard deviation; 0 for a single token."""
    if mask_BT.sum() < 2:
        return 0.0
    mean = masked_mean(values_BT, mask_BT)
    variance = masked_mean(np.square(values_BT), mask_BT) - mean * mean
    return float(np.sqrt(max(variance, 0.0)))


def row_metrics(values_R: FloatVector) -> dict[str, float]:
    """Returns mean, unbiased std, max and min over rows that have tokens."""
    return {
        "mean": float(values_R.mean()),
        "std": float(values_R.std(ddof=1)) if len(values_R) > 1 else 0.0,
        "max": float(values_R.max()),
        "min": float(values_R.min()),
    }


def with_prefix(prefix: str, option_metrics: dict[str, float]) -> dict[str, float]:
    """Adds a prefix to each name."""
    return {f"{prefix}{name}": value for name, value in option_metrics.items()}


def divergence_metrics(
    proximal_BT: FloatMatrix, rollout_BT: FloatMatrix, mask_BT: BoolMatrix
) -> dict[str, float]:
    """Returns divergences over tokens and perplexities over rows; the mask must not be empty."""
    proximal_BT, rollout_BT = masked(proximal_BT, mask_BT), masked(rollout_BT, mask_BT)
    log_ratio_BT = proximal_BT - rollout_BT
    rows_B = mask_BT.any(-1)
    log_ratio_R = clamped(log_ratio_BT.sum(-1)[rows_B])
    return {
        "kl": masked_mean(-log_ratio_BT, mask_BT),
        "k3_kl": masked_mean(clamped_exp(log_ratio_BT) - log_ratio_BT - 1.0, mask_BT),
        "chi2_token": masked_mean(np.exp(2.0 * clamped(log_ratio_BT)), mask_BT) - 1.0,
        "chi2_seq": float(np.exp(2.0 * log_ratio_R).mean()) - 1.0,
        **_perplexities(proximal_BT, rollout_BT, mask_BT),
    }


def _perplexities(
    proximal_BT: FloatMatrix, rollout_BT: FloatMatrix, mask_BT: BoolMatrix
) -> dict[str, float]:
    rows_B = mask_BT.any(-1)
    training_R = -row_means(proximal_BT, mask_BT)[rows_B]
    rollout_R = -row_means(rollout_BT, mask_BT)[rows_B]
    difference_R = training_R - rollout_R
    return {
        "training_ppl": float(clamped_exp(training_R).mean()),
        "training_log_ppl": float(training_R.mean()),
        "rollout_ppl": float(clamped_exp(rollout_R).mean()),
        "rollout_log_ppl": float(rollout_R.mean()),
        "log_ppl_diff": float(difference_R.mean()),
        "log_ppl_abs_diff": float(np.abs(difference_R).mean()),
        "log_ppl_diff_max": float(difference_R.max()),
        "log_ppl_diff_min": float(difference_R.min()),
        "ppl_ratio": float(clamped_exp(difference_R).mean()),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tokens:
    """The tokens that count, flattened, [N]."""

    log_ratios: FloatVector
    weights: FloatVector
    entropies: FloatVector | None
    clipped: BoolMatrix | None
    dropped: BoolMatrix | None
    lags: IntVector | None

    def option_metrics(self, chosen: BoolMatrix) -> dict[str, float]:
        """Returns metrics of the selected tokens, of which there must be at least one."""
        log_ratios = self.log_ratios[chosen]
        ratios = np.exp(clamped(log_ratios))
        option_metrics = {
            "tokens": float(len(ratios)),
            **with_prefix("ratio/", _ratio_figures(ratios)),
            "effective_sample_size": _effective_share(self.weights[chosen]),
            "logprob_gap/mean": float(log_ratios.mean()),
            "logprob_gap/abs_mean": float(np.abs(log_ratios).mean()),
            "logprob_gap/max": float(np.abs(log_ratios).max()),
        }
        if self.clipped is not None:
            option_metrics["clip_fraction"] = float(self.clipped[chosen].mean())
        if self.dropped is not None:
            option_metrics["mask_fraction"] = float(self.dropped[chosen].mean())
        if self.entropies is not None:
            option_metrics["entropy"] = float(self.entropies[chosen].mean())
        return option_metrics


def off_policy_metrics(
    *,
    logprobs_BT: FloatMatrix,
    rollout_logprobs_BT: FloatMatrix,
    mask_BT: BoolMatrix,
    entropies_BT: FloatMatrix | None = None,
    weights_BT: FloatMatrix | None = None,
    clipped_BT: BoolMatrix | None = None,
    kept_BT: BoolMatrix | None = None,
    lags_BT: IntMatrix | None = None,
) -> dict[str, float]:
    """Returns `off_policy/*` over all tokens and `off_policy/lag_*/*` over tokens of that lag.

    The ratio is exp(logprobs - rollout_logprobs). `effective_sample_size` is (sum w)^2 / (n sum
    w^2) of the correction's weights, or of the ratios without any: 1 where all are equal.
    `clipped_BT` marks the tokens that the loss clipped, `kept_BT` those that correction and
    advantage left in; lags are in versions of the weights.
    """
    if not mask_BT.any():
        return {}
    log_ratios = logprobs_BT[mask_BT] - rollout_logprobs_BT[mask_BT]
    tokens = _Tokens(
        log_ratios=log_ratios,
        weights=np.exp(clamped(log_ratios)) if weights_BT is None else weights_BT[mask_BT],
        entropies=None if entropies_BT is None else entropies_BT[mask_BT],
        clipped=None if clipped_BT is None else clipped_BT[mask_BT],
        dropped=None if kept_BT is None else ~kept_BT[mask_BT],
        lags=None if lags_BT is None else lags_BT[mask_BT],
    )
    metrics = with_prefix("off_policy/", tokens.option_metrics(np.ones(len(log_ratios), np.bool_)))
    return metrics | _by_lag(tokens)


def _by_lag(tokens: _Tokens) -> dict[str, float]:
    """Computes metrics per bucket of lags; buckets without tokens are left out."""
    if tokens.lags is None:
        return {}
    buckets = np.searchsorted(LAG_STARTS, np.maximum(tokens.lags, 0), side="right") - 1
    metrics: dict[str, float] = {}
    for bucket in np.unique(buckets):
        prefix = f"off_policy/lag_{LAG_NAMES[bucket]}/"
        metrics |= with_prefix(prefix, tokens.option_metrics(buckets == bucket))
    return metrics


def _ratio_figures(ratios: FloatVector) -> dict[str, float]:
    percentiles = np.percentile(ratios, PERCENTILES)
    return {
        **{f"p{at:02d}": float(value) for at, value in zip(PERCENTILES, percentiles, strict=True)},
        "mean": float(ratios.mean()),
        "min": float(ratios.min()),
        "max": float(ratios.max()),
    }


def _effective_share(weights: FloatVector) -> float:
    squares = float(np.square(weights).sum())
    return float(weights.sum()) ** 2 / (len(weights) * squares) if squares > 0 else 0.0
