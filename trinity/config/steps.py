"""How many steps a stage has: numbers that the user gives win over epochs, the smaller one wins."""

from typing import Literal, NamedTuple

from trinity.config.root import Config


class TotalSteps(NamedTuple):
    """Steps of a stage; None where the data's size decides."""

    explore: int | None
    train: int | None


def total_steps(config: Config, *, train_batch_size: int, rows_per_explore_step: int) -> TotalSteps:
    """Steps that follow from the configuration alone; `rows_per_explore_step` 0 is no explorer."""
    explore, train = config.buffer.total_steps, config.trainer.total_steps
    if rows_per_explore_step == 0:
        return TotalSteps(explore=0, train=_least(explore, train))
    if train is not None:
        explore = _least(explore, -(-train * train_batch_size // rows_per_explore_step))
    if explore is not None:
        rows = explore * rows_per_explore_step
        train = _least(train, train_steps_from(rows, train_batch_size, config.buffer.short_batch))
    return TotalSteps(explore, train)


def train_steps_from(
    rows: int, train_batch_size: int, short_batch: Literal["train", "fail"]
) -> int:
    """Batches that `rows` make; a short last one counts where short batches are trained."""
    return -(-rows // train_batch_size) if short_batch == "train" else rows // train_batch_size


def _least(*numbers: int | None) -> int | None:
    return min((n for n in numbers if n is not None), default=None)
