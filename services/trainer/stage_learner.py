"""The learner of a stage as the loop, checkpoints and publishing use it."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from services.trainer.rows import TrainBatch
from services.trainer.step_types import StepOutcome

if TYPE_CHECKING:
    import torch


class StageLearner(Protocol):
    """One rank's share of the models that a stage trains. Every method is collective."""

    def train_step(
        self, batch: TrainBatch, learning_rate: float, critic_learning_rate: float = 0.0
    ) -> StepOutcome:
        """Trains on a whole batch."""

    def weights(self) -> "Iterator[tuple[str, torch.Tensor]]":
        """Yields whole tensors by their Hugging Face names."""

    def adapter_base(self) -> bytes | None:
        """Returns the hash of the weights below the adapter; None without one."""

    def save(self, directory: Path, step: int) -> None:
        """Writes this rank's part of a checkpoint."""

    def load(self, directory: Path) -> None:
        """Continues from a checkpoint."""
