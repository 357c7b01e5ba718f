"""Number of steps of a stage: given numbers win over epochs, and the smaller one wins."""

from typing import Literal, NamedTuple

from trinity.config.root import Config


class TotalSteps(NamedTuple):
    """Steps of a stage; None if the data's size decides."""

    explore: int | None
    train: int | None


def total_steps(
    config: Config, *, rows_per_train_step: int, rows_per_explore_step: int
) -> TotalSteps:
    """Steps that the configuration alone fixes; `rows_per_explore_step` is 0 without an explorer.

    Rows are those of rollouts; other rows of a batch are not counted.
    """
    explore, train = config.buffer.total_steps, config.trainer.total_steps
    if config.mode == "explore":
        return TotalSteps(explore, train=None)
    if config.mode in ("bench", "serve"):
        return TotalSteps(explore=0, train=None)
    if rows_per_explore_step == 0:
        return TotalSteps(explore=0, train=_least(explore, train))
    if train is not None:
        explore = _least(explore, -(-train * rows_per_train_step // rows_per_explore_step))
    if explore is not None:
        rows = explore * rows_per_explore_step
        made = train_steps_from(rows, rows_per_train_step, config.buffer.short_batch)
        train = _least(train, made)
    return TotalSteps(explore, train)


def train_steps_from(
    rows: int, rows_per_train_step: int, short_batch: Literal["train", "fail"]
) -> int:
    """Batches that `rows` make; a short last one counts if short batches are trained."""
    last = rows_per_train_step - 1 if short_batch == "train" else 0
    return (rows + last) // rows_per_train_step


def _least(*numbers: int | None) -> int | None:
    return min((number for number in numbers if number is not None), default=None)
