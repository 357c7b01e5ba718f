"""Metrics of Trinity-RFT's import path; monitors are chosen in the configuration."""

import statistics
from collections.abc import Callable, Mapping, Sequence

from trinity.compat import resolve

_STATISTICS: Mapping[str, Callable[[Sequence[float]], float]] = {
    "mean": statistics.fmean,
    "max": max,
    "min": min,
    "std": lambda values: statistics.stdev(values) if len(values) > 1 else 0.0,
}


def gather_metrics(
    metric_list: Sequence[Mapping[str, object]],
    prefix: str,
    output_stats: Sequence[str] = ("mean", "max", "min"),
) -> dict[str, float]:
    """Returns statistics of each metric that is a number, as `prefix/name/mean` and so on.

    Raises: ValueError for an unknown statistic.
    """
    if unknown := sorted(set(output_stats) - _STATISTICS.keys()):
        raise ValueError(f"there is no statistic {unknown[0]!r}: give one of {[*_STATISTICS]}")
    gathered: dict[str, float] = {}
    for name in dict.fromkeys(name for own in metric_list for name in own):
        known = [own.get(name) for own in metric_list]
        values = [float(value) for value in known if isinstance(value, int | float)]
        for kind in output_stats if values else ():
            gathered[f"{prefix}/{name}/{kind}"] = float(_STATISTICS[kind](values))
    return gathered


def __getattr__(name: str) -> object:
    return resolve(__name__, name)
