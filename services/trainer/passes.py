"""Metrics of a batch that is passed over several times, with one optimizer step per pass."""

from collections.abc import Mapping, Sequence


def averaged(passes: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Returns the mean of each metric over the passes, as verl reports it."""
    return {name: sum(metrics[name] for metrics in passes) / len(passes) for name in passes[0]}
