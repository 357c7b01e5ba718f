"""What a batch is made of, as figures."""

from collections.abc import Iterable

from services.trainer.rows import TrainBatch


def batch_metrics(batch: TrainBatch) -> dict[str, float]:
    """Lengths in tokens, rows and advantages of the whole batch."""
    prompts = [row.prompt_length for row in batch.rows]
    responses = [row.response_length for row in batch.rows]
    advantages = [float(row.advantages[row.mask].mean()) for row in batch.rows if row.mask.any()]
    return {
        **_spread("prompt_length", prompts),
        **_spread("response_length", responses),
        **_spread("critic/advantages", advantages),
        "perf/total_num_tokens": float(sum(prompts) + sum(responses)),
        "train/num_rows": float(len(batch.rows)),
        "train/num_trained_rows": float(batch.num_trained_rows),
        "train/num_trained_tokens": float(batch.num_trained_tokens),
        "train/num_truncated_rows": float(sum(row.is_truncated for row in batch.rows)),
        "train/replayed": float(batch.replayed),
    }


def _spread(name: str, values: Iterable[float]) -> dict[str, float]:
    ordered = sorted(values)
    if not ordered:
        return {}
    mean = sum(ordered) / len(ordered)
    return {f"{name}/mean": mean, f"{name}/max": ordered[-1], f"{name}/min": ordered[0]}
