"""Importance weights: the ratio of each token, or the product over a row, kept within bounds."""

import numpy as np

from trinity.algorithm.rollout_correction.statistics import (
    bounded,
    bounded_exp,
    named,
    row_figures,
    spread_of,
)
from trinity.algorithm.rollout_correction.thresholds import Bounds
from trinity.algorithm.token_advantage.masked import ALMOST_NOTHING, kept, masked_mean, row_means
from trinity.algorithm.token_advantage.token_batch import BoolMatrix, FloatMatrix, FloatVector


def importance_weights(
    log_ratio_BT: FloatMatrix,
    mask_BT: BoolMatrix,
    bounds: Bounds,
    *,
    by_row: bool,
    normalize: bool,
) -> tuple[FloatMatrix, dict[str, float]]:
    """Returns weights, 0 outside the mask, and metrics of them before normalization."""
    rows_B = mask_BT.any(-1)
    if by_row:
        log_ratio_BT = np.broadcast_to(log_ratio_BT.sum(-1, keepdims=True), mask_BT.shape)
    raw_BT = kept(np.exp(bounded(log_ratio_BT)), mask_BT)
    weights_BT = _within(raw_BT, bounds)
    metrics = _figures(weights_BT, mask_BT, bounds)
    if by_row:
        metrics |= _extremes_of_rows(log_ratio_BT[rows_B, 0], bounds)
    else:
        metrics |= _extremes_of_tokens(raw_BT, weights_BT, mask_BT, bounds)
    metrics |= _figures_of_rows(raw_BT, weights_BT, mask_BT, bounds)
    if bounds.lower is not None:
        metrics["rollout_is_oob_ratio"] = masked_mean(
            (raw_BT < bounds.lower) | (raw_BT > bounds.upper), mask_BT
        )
    if normalize:
        mean = _mean_weight(weights_BT, mask_BT, by_row)
        metrics["rollout_is_batch_norm_factor"] = mean
        weights_BT = weights_BT / mean
    return weights_BT, metrics


def _within(raw_BT: FloatMatrix, bounds: Bounds) -> FloatMatrix:
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
    return mean if mean > ALMOST_NOTHING else 1.0


def _figures(weights_BT: FloatMatrix, mask_BT: BoolMatrix, bounds: Bounds) -> dict[str, float]:
    weights_BT = np.minimum(weights_BT, bounds.upper)
    mean = masked_mean(weights_BT, mask_BT)
    squares = masked_mean(np.square(weights_BT / (mean + ALMOST_NOTHING)), mask_BT)
    return {
        "rollout_is_mean": mean,
        "rollout_is_std": spread_of(weights_BT, mask_BT),
        "rollout_is_eff_sample_size": 1.0 / squares if squares > 0 else 0.0,
    }


def _extremes_of_tokens(
    raw_BT: FloatMatrix, weights_BT: FloatMatrix, mask_BT: BoolMatrix, bounds: Bounds
) -> dict[str, float]:
    weights_N = weights_BT[mask_BT]
    return {
        "rollout_is_max": float(weights_N.max()),
        "rollout_is_min": float(weights_N.min()),
        "rollout_is_ratio_fraction_high": masked_mean(raw_BT > bounds.upper, mask_BT),
        "rollout_is_ratio_fraction_low": masked_mean(raw_BT < _low(bounds), mask_BT),
    }


def _extremes_of_rows(log_ratio_R: FloatVector, bounds: Bounds) -> dict[str, float]:
    """Returns metrics of the ratios before truncation."""
    return {
        "rollout_is_max": float(bounded_exp(log_ratio_R.max())),
        "rollout_is_min": float(bounded_exp(log_ratio_R.min())),
        "rollout_is_ratio_fraction_high": float((log_ratio_R > np.log(bounds.upper)).mean()),
        "rollout_is_ratio_fraction_low": float((log_ratio_R < np.log(_low(bounds))).mean()),
    }


def _figures_of_rows(
    raw_BT: FloatMatrix, weights_BT: FloatMatrix, mask_BT: BoolMatrix, bounds: Bounds
) -> dict[str, float]:
    rows_B = mask_BT.any(-1)
    means_R = row_means(weights_BT, mask_BT)[rows_B]
    raw_means_R = row_means(raw_BT, mask_BT)[rows_B]
    return {
        **named("rollout_is_seq_", row_figures(means_R)),
        "rollout_is_seq_max_deviation": float(np.abs(means_R - 1.0).max()),
        "rollout_is_seq_fraction_high": float((raw_means_R > bounds.upper).mean()),
        "rollout_is_seq_fraction_low": float((raw_means_R < _low(bounds)).mean()),
    }


def _low(bounds: Bounds) -> float:
    return 1.0 / bounds.upper if bounds.lower is None else bounds.lower
