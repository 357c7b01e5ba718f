"""Metrics of a batch, as they appear in monitors."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

GroupKey = tuple[int, int]
RunKey = tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRow:
    """The fields of one row that the metrics are computed from."""

    explore_step: int
    position: int
    run: int
    reward: float | None
    response_length: int
    version_min: int | None
    metrics: dict[str, float]
    """Reward parts and metrics of the sample."""
    run_metrics: dict[str, float]
    """Metrics of the run that the sample came from, shared by all samples of the run."""


def batch_metrics(rows: Sequence[MeasuredRow], step: int) -> dict[str, float]:
    """Returns metrics of rewards, lengths, versions, and everything that the workflows measured.

    A version's drift is how many train steps older it is than the weights that `step` starts from.
    Rows without a version are counted if there are any: `max_staleness` never leaves them out.
    """
    rewards = [row.reward for row in rows if row.reward is not None]
    lengths = [float(row.response_length) for row in rows]
    versions = [float(row.version_min) for row in rows if row.version_min is not None]
    figures = {"num_groups": float(len({(row.explore_step, row.position) for row in rows}))}
    if rewards:
        figures |= _spread("reward", rewards)
        figures["group/reward_std"] = _mean_group_std(rows)
    if lengths:
        figures |= _range("response_length", lengths)
    if versions:
        drifts = [step - 1 - version for version in versions]
        figures |= _range("sample/model_version", versions)
        figures |= _range("sample/model_version_drift", drifts)
    if len(versions) < len(rows):
        figures["sample/num_unversioned_rows"] = float(len(rows) - len(versions))
    for name, values in sorted(_rollout_values(rows).items()):
        figures |= _range(f"rollout/{name}", values)
    return figures


def _range(name: str, values: Sequence[float]) -> dict[str, float]:
    return {
        f"{name}/mean": float(np.mean(values)),
        f"{name}/min": float(np.min(values)),
        f"{name}/max": float(np.max(values)),
    }


def _spread(name: str, values: Sequence[float]) -> dict[str, float]:
    return _range(name, values) | {f"{name}/std": float(np.std(values))}


def _mean_group_std(rows: Iterable[MeasuredRow]) -> float:
    groups: dict[GroupKey, list[float]] = defaultdict(list)
    for row in rows:
        if row.reward is not None:
            groups[row.explore_step, row.position].append(row.reward)
    return float(np.mean([np.std(rewards) for rewards in groups.values()]))


def _rollout_values(rows: Iterable[MeasuredRow]) -> dict[str, list[float]]:
    """Returns measured values by metric; a metric with any non-finite value is left out."""
    values: dict[str, list[float]] = defaultdict(list)
    seen_runs: set[RunKey] = set()
    for row in rows:
        for name, value in row.metrics.items():
            values[name].append(value)
        run = (row.explore_step, row.position, row.run)
        if run not in seen_runs:
            seen_runs.add(run)
            for name, value in row.run_metrics.items():
                values[name].append(value)
    return {name: listed for name, listed in values.items() if np.isfinite(listed).all()}
