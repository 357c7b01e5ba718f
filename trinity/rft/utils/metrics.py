"""Statistics of metrics by Trinity-RFT's import path.

aggregate_metrics([{"reward": 1.0, "calls:sum": 2}, {"reward": 3.0, "calls:sum": 1}], "step")
# step/reward/mean, /max and /min, and step/calls/sum
"""

import statistics
from collections.abc import Callable, Mapping, Sequence

from trinity.rft.import_hook import resolve

Statistic = Callable[[Sequence[float]], float]
USUAL = ("mean", "max", "min")
_STATISTICS: Mapping[str, Statistic] = {
    "mean": statistics.fmean,
    "max": max,
    "min": min,
    "std": statistics.pstdev,
}
_BY_SUFFIX: Mapping[str, Statistic] = {
    "sum": sum,
    "max": max,
    "min": min,
    "last": lambda values: values[-1],
}
"""Statistics that a suffix such as `:sum` of a name selects instead of the usual ones."""


def aggregate_metrics(
    metric_dicts: Sequence[Mapping[str, object]],
    prefix: str = "",
    default_output_stats: Sequence[str] | None = None,
) -> dict[str, float]:
    """Returns statistics of each metric that is a number, as `prefix/name/mean` and so on.

    Raises: ValueError for an unknown statistic.
    """
    usual = USUAL if default_output_stats is None else default_output_stats
    if unknown := sorted(set(usual) - _STATISTICS.keys()):
        raise ValueError(f"there is no statistic {unknown[0]!r}: give one of {[*_STATISTICS]}")
    aggregated: dict[str, float] = {}
    for key in dict.fromkeys(key for own in metric_dicts for key in own):
        known = [own.get(key) for own in metric_dicts]
        values = [float(value) for value in known if isinstance(value, int | float)]
        name, _, suffix = key.rpartition(":")
        chosen: Mapping[str, Statistic] = {kind: _STATISTICS[kind] for kind in usual}
        if suffix in _BY_SUFFIX and name:
            chosen = {suffix: _BY_SUFFIX[suffix]}
        own_name = name if suffix in _BY_SUFFIX and name else key.removesuffix(":mean")
        place = f"{prefix}/{own_name}" if prefix else own_name
        aggregated |= {f"{place}/{k}": float(fn(values)) for k, fn in chosen.items() if values}
    return aggregated


def gather_metrics(
    metric_list: Sequence[Mapping[str, object]], prefix: str, output_stats: Sequence[str] = USUAL
) -> dict[str, float]:
    """Does the same, by its name in Trinity-RFT 0.5."""
    return aggregate_metrics(metric_list, prefix, output_stats)


def __getattr__(name: str) -> object:
    return resolve(__name__, name)
