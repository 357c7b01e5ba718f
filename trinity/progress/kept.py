"""Filters the metrics that a launcher keeps: it holds those of all steps and batches, for days."""

from collections.abc import Mapping

Metrics = dict[str, float]

# The parts of a train step that do not overlap, and their titles.
TIME_PARTS = {
    "time/read_experience": "waiting for a batch",
    "time/train_step": "training",
    "time/sync_weight": "publishing weights",
    "time/save_checkpoint": "checkpoint",
}
WARNING_PREFIX = "warning/"
OF_STEPS = ("actor/loss", "perf/total_num_tokens", *TIME_PARTS)
OF_BATCHES = ("reward/mean",)
"""Shown in lines, screen, curves and summary; monitors show all others."""


def kept_of_step(metrics: Mapping[str, float]) -> Metrics:
    """Returns a step's metrics that are shown, and its warnings."""
    warnings = {name: value for name, value in metrics.items() if name.startswith(WARNING_PREFIX)}
    return _kept(metrics, OF_STEPS) | warnings


def kept_of_batch(metrics: Mapping[str, float]) -> Metrics:
    """Returns a batch's metrics that are shown."""
    return _kept(metrics, OF_BATCHES)


def _kept(metrics: Mapping[str, float], names: tuple[str, ...]) -> Metrics:
    return {name: metrics[name] for name in names if name in metrics}
