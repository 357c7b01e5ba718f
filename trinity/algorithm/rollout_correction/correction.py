"""Rollout correction: importance weights within bounds, and rejection of tokens and rows."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from trinity.algorithm.rollout_correction.metrics import (
    clamped,
    clamped_exp,
    divergence_metrics,
    masked_std,
    row_metrics,
    with_prefix,
)
from trinity.algorithm.rollout_correction.settings import CorrectionSettings, RatioBounds
from trinity.algorithm.token_advantage.masked import (
    EPSILON,
    broadcast_rows,
    masked,
    masked_mean,
    row_means,
)
from trinity.algorithm.token_advantage.token_batch import BoolMatrix, FloatMatrix, FloatVector

DIVERGENCE_ESTIMATES: Mapping[str, Callable[[FloatMatrix], FloatMatrix]] = {
    "k1": lambda log_ratio: -log_ratio,
    "k2": lambda log_ratio: 0.5 * np.square(log_ratio),
    "k3": lambda log_ratio: np.exp(log_ratio) - 1.0 - log_ratio,
}
ROW_AGGREGATIONS: Mapping[str, Callable[[FloatMatrix, BoolMatrix], FloatVector]] = {
    "seq_sum": lambda values_BT, mask_BT: masked(values_BT, mask_BT).sum(-1),
    "seq_mean": row_means,
    "seq_max": lambda values_BT, mask_BT: np.where(
        mask_BT.any(-1), np.where(mask_BT, values_BT, -np.inf).max(-1, initial=-np.inf), 0.0
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrectionResult:
    """Factors on the losses of tokens, and the mask of tokens that still count."""

    weights_BT: FloatMatrix | None
    """None is 1 everywhere; 0 where the batch's mask is false."""
    mask_BT: BoolMatrix
    metrics: Mapping[str, float] = field(default_factory=dict)


def correct_rollout(
    *,
    proximal_logprobs_BT: FloatMatrix,
    rollout_logprobs_BT: FloatMatrix,
    mask_BT: BoolMatrix,
    settings: CorrectionSettings,
) -> CorrectionResult:
    """Applies `settings` to the ratio r = exp(proximal - rollout) at each token, [B, T].

    correction = correct_rollout(
        proximal_logprobs_BT=...,
        rollout_logprobs_BT=...,
        mask_BT=...,
        settings=PRESETS["icepop"].settings,
    )
    """
    if not mask_BT.any():
        return CorrectionResult(weights_BT=None, mask_BT=mask_BT)
    log_ratio_BT = masked(proximal_logprobs_BT - rollout_logprobs_BT, mask_BT)
    metrics: dict[str, float] = {}
    weights_BT = None
    bounds = settings.weight_bounds()
    if bounds is not None:
        weights_BT, option_metrics = importance_weights(
            log_ratio_BT,
            mask_BT,
            bounds,
            by_row=settings.rollout_is == "sequence",
            normalize=settings.rollout_is_batch_normalize,
        )
        metrics |= option_metrics
    rejected_BT, option_metrics = reject(log_ratio_BT, mask_BT, settings.rejection_bounds())
    metrics |= option_metrics
    if settings.rollout_token_veto_threshold is not None:
        vetoed_BT, option_metrics = veto(
            log_ratio_BT, mask_BT, settings.rollout_token_veto_threshold
        )
        rejected_BT = rejected_BT | vetoed_BT
        metrics |= option_metrics
    metrics |= divergence_metrics(proximal_logprobs_BT, rollout_logprobs_BT, mask_BT)
    return CorrectionResult(
        weights_BT=weights_BT,
        mask_BT=mask_BT & ~rejected_BT,
        metrics={f"rollout_corr/{name}": value for name, value in metrics.items()},
    )


def importance_weights(
    log_ratio_BT: FloatMatrix,
    mask_BT: BoolMatrix,
    bounds: RatioBounds,
    *,
    by_row: bool,
    normalize: bool,
) -> tuple[FloatMatrix, dict[str, float]]:
    """Returns weights, 0 outside the mask, and metrics of them before normalization."""
    rows_B = mask_BT.any(-1)
    if by_row:
        log_ratio_BT = np.broadcast_to(log_ratio_BT.sum(-1, keepdims=True), mask_BT.shape)
    raw_BT = masked(np.exp(clamped(log_ratio_BT)), mask_BT)
    weights_BT = _within(raw_BT, bounds)
    metrics = _weight_metrics(weights_BT, mask_BT, bounds)
    if by_row:
        metrics |= _extremes_of_rows(log_ratio_BT[rows_B, 0], bounds)
    else:
        metrics |= _extremes_of_tokens(raw_BT, weights_BT, mask_BT, bounds)
    metrics |= _row_weight_metrics(raw_BT, weights_BT, mask_BT, bounds)
    if bounds.lower is not None:
        metrics["rollout_is_oob_ratio"] = masked_mean(
            (raw_BT < bounds.lower) | (raw_BT > bounds.upper), mask_BT
        )
    if normalize:
        mean = _mean_weight(weights_BT, mask_BT, by_row)
        metrics["rollout_is_batch_norm_factor"] = mean
        weights_BT = weights_BT / mean
    return weights_BT, metrics


def _within(raw_BT: FloatMatrix, bounds: RatioBounds) -> FloatMatrix:
    """Truncates at a single bound; with two bounds sets weights outside to 0."""
    if bounds.lower is None:
        return np.minimum(raw_BT, bounds.upper)
    return np.where((raw_BT >= bounds.lower) & (raw_BT <= bounds.upper), raw_BT, 0.0)


def _mean_weight(weights_BT: FloatMatrix, mask_BT: BoolMatrix, by_row: bool) -> float:
    """Returns the mean weight; 1 where all weights are 0."""
    rows_B = mask_BT.any(-1)
    mean = (
        float(row_means(weights_BT, mask_BT)[rows_B].mean())
        if by_row
        else masked_mean(weights_BT, mask_BT)
    )
    return mean if mean > EPSILON else 1.0


def _weight_metrics(
    weights_BT: FloatMatrix, mask_BT: BoolMatrix, bounds: RatioBounds
) -> dict[str, float]:
    weights_BT = np.minimum(weights_BT, bounds.upper)
    mean = masked_mean(weights_BT, mask_BT)
    squares = masked_mean(np.square(weights_BT / (mean + EPSILON)), mask_BT)
    return {
        "rollout_is_mean": mean,
        "rollout_is_std": masked_std(weights_BT, mask_BT),
        "rollout_is_eff_sample_size": 1.0 / squares if squares > 0 else 0.0,
    }


def _extremes_of_tokens(
    raw_BT: FloatMatrix, weights_BT: FloatMatrix, mask_BT: BoolMatrix, bounds: RatioBounds
) -> dict[str, float]:
    weights_N = weights_BT[mask_BT]
    return {
        "rollout_is_max": float(weights_N.max()),
        "rollout_is_min": float(weights_N.min()),
        "rollout_is_ratio_fraction_high": masked_mean(raw_BT > bounds.upper, mask_BT),
        "rollout_is_ratio_fraction_low": masked_mean(raw_BT < _low(bounds), mask_BT),
    }


def _extremes_of_rows(log_ratio_R: FloatVector, bounds: RatioBounds) -> dict[str, float]:
    """Returns metrics of the ratios before truncation."""
    return {
        "rollout_is_max": float(clamped_exp(log_ratio_R.max())),
        "rollout_is_min": float(clamped_exp(log_ratio_R.min())),
        "rollout_is_ratio_fraction_high": float((log_ratio_R > np.log(bounds.upper)).mean()),
        "rollout_is_ratio_fraction_low": float((log_ratio_R < np.log(_low(bounds))).mean()),
    }


def _row_weight_metrics(
    raw_BT: FloatMatrix, weights_BT: FloatMatrix, mask_BT: BoolMatrix, bounds: RatioBounds
) -> dict[str, float]:
    rows_B = mask_BT.any(-1)
    means_R = row_means(weights_BT, mask_BT)[rows_B]
    raw_means_R = row_means(raw_BT, mask_BT)[rows_B]
    return {
        **with_prefix("rollout_is_seq_", row_metrics(means_R)),
        "rollout_is_seq_max_deviation": float(np.abs(means_R - 1.0).max()),
        "rollout_is_seq_fraction_high": float((raw_means_R > bounds.upper).mean()),
        "rollout_is_seq_fraction_low": float((raw_means_R < _low(bounds)).mean()),
    }


def _low(bounds: RatioBounds) -> float:
    return 1.0 / bounds.upper if bounds.lower is None else bounds.lower


def reject(
    log_ratio_BT: FloatMatrix, mask_BT: BoolMatrix, bounds: Mapping[str, RatioBounds]
) -> tuple[BoolMatrix, dict[str, float]]:
    """Returns the tokens that any option rejects, and metrics of each option."""
    rejected_BT = np.zeros_like(mask_BT)
    metrics: dict[str, float] = {}
    for option, limits in bounds.items():
        by_option_BT, option_metrics = _rejected_by(option, limits, clamped(log_ratio_BT), mask_BT)
        rejected_BT |= by_option_BT
        metrics |= with_prefix(f"rollout_rs_{option}_", option_metrics)
    if bounds:
        metrics |= with_prefix("rollout_rs_", _fractions(rejected_BT, mask_BT))
    return rejected_BT, metrics


def veto(
    log_ratio_BT: FloatMatrix, mask_BT: BoolMatrix, threshold: float
) -> tuple[BoolMatrix, dict[str, float]]:
    """Returns all tokens of rows with a token whose ratio is below the threshold, and metrics."""
    catastrophic_BT = mask_BT & (log_ratio_BT < np.log(threshold))
    vetoed_BT = mask_BT & catastrophic_BT.any(-1, keepdims=True)
    return vetoed_BT, {
        "rollout_is_catastrophic_token_fraction": masked_mean(catastrophic_BT, mask_BT),
        "rollout_is_veto_fraction": _share_of_rows(vetoed_BT, mask_BT),
    }


def _rejected_by(
    option: str, limits: RatioBounds, log_ratio_BT: FloatMatrix, mask_BT: BoolMatrix
) -> tuple[BoolMatrix, dict[str, float]]:
    level, _, estimate = option.rpartition("_")
    if estimate == "k1":
        limits = limits.log
    values_BT = DIVERGENCE_ESTIMATES[estimate](log_ratio_BT)
    by_row = level != "token"
    if by_row:
        values_B = ROW_AGGREGATIONS[level](values_BT, mask_BT)
        values_BT = broadcast_rows(values_B, mask_BT)
    else:
        values_B = row_means(values_BT, mask_BT)
    rows_B = mask_BT.any(-1)
    rejected_BT = mask_BT & ((values_BT > limits.upper) | _below(values_BT, limits))
    return rejected_BT, {
        **_rejection_metrics(values_BT, mask_BT, limits, by_row=by_row),
        **with_prefix("seq_", _rejected_row_metrics(values_B[rows_B], limits)),
        **_fractions(rejected_BT, mask_BT),
    }


def _fractions(rejected_BT: BoolMatrix, mask_BT: BoolMatrix) -> dict[str, float]:
    return {
        "masked_fraction": masked_mean(rejected_BT, mask_BT),
        "seq_masked_fraction": _share_of_rows(rejected_BT, mask_BT),
    }


def _rejection_metrics(
    values_BT: FloatMatrix, mask_BT: BoolMatrix, limits: RatioBounds, *, by_row: bool
) -> dict[str, float]:
    """Returns metrics; the fractions are of rows where rows are rejected whole, else of tokens."""
    values_N = values_BT[mask_BT]
    share = _share_of_rows if by_row else masked_mean
    within_BT = np.clip(values_BT, 0.0 if limits.lower is None else limits.lower, limits.upper)
    return {
        "mean": masked_mean(values_BT, mask_BT),
        "max": float(values_N.max()),
        "min": float(values_N.min()),
        "fraction_high": share(values_BT > limits.upper, mask_BT),
        "fraction_low": share(_below(values_BT, limits), mask_BT),
        "std": masked_std(within_BT, mask_BT),
    }


def _rejected_row_metrics(values_R: FloatVector, limits: RatioBounds) -> dict[str, float]:
    option_metrics = {
        **row_metrics(values_R),
        "max_deviation": float(np.abs(values_R).max()),
        "fraction_high": float((values_R > limits.upper).mean()),
    }
    if limits.lower is not None:
        option_metrics["fraction_low"] = float((values_R < limits.lower).mean())
    return option_metrics


def _below(values: FloatMatrix, limits: RatioBounds) -> BoolMatrix:
    below: BoolMatrix = values < (-np.inf if limits.lower is None else limits.lower)
    return below


def _share_of_rows(chosen_BT: BoolMatrix, mask_BT: BoolMatrix) -> float:
    """Returns the share of rows with any chosen token, among rows with tokens."""
    num_chosen = np.count_nonzero((chosen_BT & mask_BT).any(-1))
    return float(num_chosen / np.count_nonzero(mask_BT.any(-1)))
