"""Merges metrics of groups into those of a batch."""

from collections import defaultdict
from collections.abc import Iterable, Mapping

import numpy as np

PREFIX = "experience_pipeline"
SUMMED = ("_count", "dropped_all_correct", "dropped_all_wrong")
RATIO = "_ratio"


def batch_figures(groups: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Sums counts, averages ratios, and gives mean, min and max of all other metrics."""
    values: dict[str, list[float]] = defaultdict(list)
    for figures in groups:
        for name, value in figures.items():
            if np.isfinite(value):
                values[name].append(value)
    merged: dict[str, float] = {}
    for name in sorted(values):
        merged |= _merged(f"{PREFIX}/{name}", values[name])
    return merged


def _merged(name: str, values: list[float]) -> dict[str, float]:
    if name.endswith(SUMMED):
        return {name: float(np.sum(values))}
    if name.endswith(RATIO):
        return {name: float(np.mean(values))}
    return {
        f"{name}/mean": float(np.mean(values)),
        f"{name}/min": float(np.min(values)),
        f"{name}/max": float(np.max(values)),
    }
