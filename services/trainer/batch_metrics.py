"""Metrics that describe the composition of a batch."""

from collections.abc import Sequence

from services.trainer.rows import TrainBatch
from services.trainer.spread import spread


def batch_metrics(
    batch: TrainBatch, *, max_prompt_tokens: int, max_response_tokens: int
) -> dict[str, float]:
    """Returns lengths in tokens and numbers of rows, over the whole batch.

    A `clip_ratio` is the share of rows of the greatest length, which were probably cut off.
    """
    prompts = [row.prompt_length for row in batch.rows]
    responses = [row.response_length for row in batch.rows]
    return {
        **spread("prompt_length", prompts),
        **spread("response_length", responses),
        **_clip_ratio("prompt_length", prompts, max_prompt_tokens),
        **_clip_ratio("response_length", responses, max_response_tokens),
        "perf/total_num_tokens": float(sum(prompts) + sum(responses)),
        "train/num_rows": float(len(batch.rows)),
        "train/num_trained_rows": float(batch.num_trained_rows),
        "train/num_trained_tokens": float(batch.num_trained_tokens),
        "train/num_truncated_rows": float(sum(row.is_truncated for row in batch.rows)),
        "train/replayed": float(batch.replayed),
    }


def _clip_ratio(name: str, lengths: Sequence[int], longest: int) -> dict[str, float]:
    if not lengths:
        return {}
    return {f"{name}/clip_ratio": sum(length >= longest for length in lengths) / len(lengths)}
