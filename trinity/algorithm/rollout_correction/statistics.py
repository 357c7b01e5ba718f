"""Statistics over tokens and rows, computed as in verl's rollout correction."""

import numpy as np

from trinity.algorithm.token_advantage.masked import masked_mean
from trinity.algorithm.token_advantage.token_batch import BoolMatrix, FloatMatrix, FloatVector

LARGEST_LOG_RATIO = 20.0
"""Logarithms are clamped to this before they are exponentiated."""


def bounded(log_ratio: FloatMatrix) -> FloatMatrix:
    """Clamps on both sides."""
    return np.clip(log_ratio, -LARGEST_LOG_RATIO, LARGEST_LOG_RATIO)


def bounded_exp(logarithms: FloatMatrix) -> FloatMatrix:
    """Returns exp, clamped from above."""
    powers: FloatMatrix = np.exp(np.minimum(logarithms, LARGEST_LOG_RATIO))
    return powers


def spread_of(values_BT: FloatMatrix, mask_BT: BoolMatrix) -> float:
    """Returns the population's standard deviation; 0 for a single token."""
    if mask_BT.sum() < 2:
        return 0.0
    mean = masked_mean(values_BT, mask_BT)
    variance = masked_mean(np.square(values_BT), mask_BT) - mean * mean
    return float(np.sqrt(max(variance, 0.0)))


def row_figures(values_R: FloatVector) -> dict[str, float]:
    """Returns mean, unbiased std, max and min over rows that have tokens."""
    return {
        "mean": float(values_R.mean()),
        "std": float(values_R.std(ddof=1)) if len(values_R) > 1 else 0.0,
        "max": float(values_R.max()),
        "min": float(values_R.min()),
    }


def named(prefix: str, figures: dict[str, float]) -> dict[str, float]:
    """Adds a prefix to each name."""
    return {f"{prefix}{name}": value for name, value in figures.items()}
