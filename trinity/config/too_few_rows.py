"""Checks that tasks or rows of data are enough for one step."""

from trinity.config.plan import StagePlan


def too_few_rows(stage: StagePlan, num_rows: int) -> str:
    """The error and its fix if `num_rows` make no step; empty if they make one."""
    kind, num_steps = "train", stage.num_train_steps(num_rows)
    if stage.mode == "explore":
        kind, num_steps = "explore", stage.num_explore_steps(num_rows)
    if num_steps > 0 or stage.mode in ("bench", "serve"):
        return ""
    size, key = stage.train_batch_size, "train_batch_size"
    if stage.needs_rollout:
        size, key = stage.config.buffer.batch_size, "batch_size"
    return (
        f"{num_rows} rows make no {kind} step with `buffer.{key}: {size}` and "
        f"`buffer.total_epochs: {stage.config.buffer.total_epochs}`: "
        "give more rows or epochs, a smaller batch, or `buffer.total_steps`"
    )
