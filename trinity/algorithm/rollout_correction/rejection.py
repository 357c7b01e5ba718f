"""Rejection: leaves out tokens and rows on which the two policies disagree too much."""

from collections.abc import Callable, Mapping

import numpy as np

from trinity.algorithm.rollout_correction.statistics import (
    bounded,
    named,
    row_figures,
    spread_of,
)
from trinity.algorithm.rollout_correction.thresholds import Bounds
from trinity.algorithm.token_advantage.masked import kept, masked_mean, row_means, spread
from trinity.algorithm.token_advantage.token_batch import BoolMatrix, FloatMatrix, FloatVector

ESTIMATES: Mapping[str, Callable[[FloatMatrix], FloatMatrix]] = {
    "k1": lambda log_ratio: -log_ratio,
    "k2": lambda log_ratio: 0.5 * np.square(log_ratio),
    "k3": lambda log_ratio: np.exp(log_ratio) - 1.0 - log_ratio,
}
TOGETHER: Mapping[str, Callable[[FloatMatrix, BoolMatrix], FloatVector]] = {
    "seq_sum": lambda values_BT, mask_BT: kept(values_BT, mask_BT).sum(-1),
    "seq_mean": row_means,
    "seq_max": lambda values_BT, mask_BT: np.where(
        mask_BT.any(-1), np.where(mask_BT, values_BT, -np.inf).max(-1, initial=-np.inf), 0.0
    ),
}


def rejected(
    log_ratio_BT: FloatMatrix, mask_BT: BoolMatrix, bounds: Mapping[str, Bounds]
) -> tuple[BoolMatrix, dict[str, float]]:
    """Returns the tokens that any option rejects, and metrics of each option."""
    rejected_BT = np.zeros_like(mask_BT)
    metrics: dict[str, float] = {}
    for option, limits in bounds.items():
        by_option_BT, figures = _rejected_by(option, limits, bounded(log_ratio_BT), mask_BT)
        rejected_BT |= by_option_BT
        metrics |= named(f"rollout_rs_{option}_", figures)
    if bounds:
        metrics |= named("rollout_rs_", _fractions(rejected_BT, mask_BT))
    return rejected_BT, metrics


def _rejected_by(
    option: str, limits: Bounds, log_ratio_BT: FloatMatrix, mask_BT: BoolMatrix
) -> tuple[BoolMatrix, dict[str, float]]:
    level, _, estimate = option.rpartition("_")
    if estimate == "k1":
        limits = limits.log
    values_BT = ESTIMATES[estimate](log_ratio_BT)
    by_row = level != "token"
    if by_row:
        values_B = TOGETHER[level](values_BT, mask_BT)
        values_BT = spread(values_B, mask_BT)
    else:
        values_B = row_means(values_BT, mask_BT)
    rows_B = mask_BT.any(-1)
    rejected_BT = mask_BT & ((values_BT > limits.upper) | _below(values_BT, limits))
    return rejected_BT, {
        **_figures(values_BT, mask_BT, limits, by_row=by_row),
        **named("seq_", _figures_of_rows(values_B[rows_B], limits)),
        **_fractions(rejected_BT, mask_BT),
    }


def _fractions(rejected_BT: BoolMatrix, mask_BT: BoolMatrix) -> dict[str, float]:
    return {
        "masked_fraction": masked_mean(rejected_BT, mask_BT),
        "seq_masked_fraction": _share_of_rows(rejected_BT, mask_BT),
    }


def _figures(
    values_BT: FloatMatrix, mask_BT: BoolMatrix, limits: Bounds, *, by_row: bool
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
        "std": spread_of(within_BT, mask_BT),
    }


def _figures_of_rows(values_R: FloatVector, limits: Bounds) -> dict[str, float]:
    figures = {
        **row_figures(values_R),
        "max_deviation": float(np.abs(values_R).max()),
        "fraction_high": float((values_R > limits.upper).mean()),
    }
    if limits.lower is not None:
        figures["fraction_low"] = float((values_R < limits.lower).mean())
    return figures


def _below(values: FloatMatrix, limits: Bounds) -> BoolMatrix:
    below: BoolMatrix = values < (-np.inf if limits.lower is None else limits.lower)
    return below


def _share_of_rows(chosen_BT: BoolMatrix, mask_BT: BoolMatrix) -> float:
    """Returns the share of rows with any chosen token, among rows with tokens."""
    num_chosen = np.count_nonzero((chosen_BT & mask_BT).any(-1))
    return float(num_chosen / np.count_nonzero(mask_BT.any(-1)))
