"""Metrics of a batch's lengths and rows, and summaries of several values as metrics."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from services.trainer.types import TrainBatch


def mean_max_min(name: str, values: Sequence[float] | npt.NDArray[np.float64]) -> dict[str, float]:
    """Returns the three metrics; none where there are no values."""
    ordered = sorted(float(value) for value in values)
    if not ordered:
        return {}
    mean = sum(ordered) / len(ordered)
    return {f"{name}/mean": mean, f"{name}/max": ordered[-1], f"{name}/min": ordered[0]}


def batch_metrics(
    batch: TrainBatch, *, max_prompt_tokens: int, max_response_tokens: int
) -> dict[str, float]:
    """Returns lengths in tokens and numbers of rows, over the whole batch.

    A `clip_ratio` is the share of rows of the greatest length, which were probably cut off.
    """
    prompts = [row.prompt_length for row in batch.rows]
    responses = [row.response_length for row in batch.rows]
    return {
        **mean_max_min("prompt_length", prompts),
        **mean_max_min("response_length", responses),
        **_clip_ratio("prompt_length", prompts, max_prompt_tokens),
        **_clip_ratio("response_length", responses, max_response_tokens),
        "perf/total_num_tokens": float(sum(prompts) + sum(responses)),
        "train/num_rows": float(len(batch.rows)),
        "train/num_trained_rows": float(batch.num_trained_rows),
        "train/num_trained_tokens": float(batch.num_trained_tokens),
        "train/num_bad_rows": float(batch.num_bad_rows),
        "train/num_truncated_rows": float(sum(row.is_truncated for row in batch.rows)),
        "train/replayed": float(batch.replayed),
    }


def _clip_ratio(name: str, lengths: Sequence[int], longest: int) -> dict[str, float]:
    if not lengths:
        return {}
    return {f"{name}/clip_ratio": sum(length >= longest for length in lengths) / len(lengths)}


def mean_over_passes(passes: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Returns the mean of each metric over the passes, as verl reports it."""
    return {name: sum(metrics[name] for metrics in passes) / len(passes) for name in passes[0]}
