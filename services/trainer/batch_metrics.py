"""What a batch is made of, as figures."""

from services.trainer.rows import TrainBatch
from services.trainer.spread import spread


def batch_metrics(batch: TrainBatch) -> dict[str, float]:
    """Lengths in tokens, and rows, of the whole batch."""
    prompts = [row.prompt_length for row in batch.rows]
    responses = [row.response_length for row in batch.rows]
    return {
        **spread("prompt_length", prompts),
        **spread("response_length", responses),
        "perf/total_num_tokens": float(sum(prompts) + sum(responses)),
        "train/num_rows": float(len(batch.rows)),
        "train/num_trained_rows": float(batch.num_trained_rows),
        "train/num_trained_tokens": float(batch.num_trained_tokens),
        "train/num_truncated_rows": float(sum(row.is_truncated for row in batch.rows)),
        "train/replayed": float(batch.replayed),
    }
