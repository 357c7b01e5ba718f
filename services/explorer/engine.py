"""What the explorer asks of a rollout engine."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from trinity.config.rollout_model import EngineConfig
from trinity.errors import TrinityError
from trinity.transfer.offer import Receivers, Seat
from trinity.workflows.generation import Generator


class EngineDied(TrinityError):
    """The engine's process is gone: this process must start anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """A model and how to run it."""

    model_path: str
    max_model_len: int
    end_token_ids: tuple[int, ...]
    """Tokens that end a response."""
    rollout: EngineConfig
    number: int = 0
    """Which of the `engine_num` engines of the model it is."""
    first_gpu: int = 0
    """Where the GPUs of the model's engines begin, among those of this process."""
    gpus_of_process: int | None = None
    """GPUs of the engines of all models; None where there is one model."""
    holds_to_schemas: bool = False
    """Whether responses may be held to a JSON Schema, for which it needs the tokenizer."""
    role: str = "the rollout engine"
    """How sentences call it."""


class Engine(Generator, Protocol):
    """A model in memory that makes tokens and takes new weights.

    `load_weights` is called only while nothing is being generated.
    """

    async def load_weights(self, directory: Path) -> None:
        """Replace the weights by those of a Hugging Face directory, of the same architecture."""
        ...

    @property
    def receivers(self) -> Receivers:
        """Its processes that would receive weights."""
        ...

    async def receive_weights(self, seat: Seat) -> str:
        """Replace the weights by those that come from a trainer's memory.

        Answers why they must not be used, and others must be loaded; empty where all is well.
        Called, as `load_weights` is, while nothing is being generated.
        """
        ...

    async def check(self) -> None:
        """Raises: EngineDied when it has."""
        ...

    async def close(self) -> None:
        """Free what the engine holds."""
        ...
