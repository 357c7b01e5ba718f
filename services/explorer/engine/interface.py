"""The interface of a rollout engine."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from trinity.config.schema.explorer import EngineConfig
from trinity.errors import TrinityError
from trinity.json_values import JsonObject
from trinity.weights.offer import Receivers, ReceiverSlot
from trinity.workflows.generation import Generator


class EngineDied(TrinityError):
    """The engine's process is gone: this process must be restarted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRequest:
    """The device that an engine shares, as its process asks for it."""

    path: Path
    """File of the device's lock."""
    reason: str
    seconds: float
    """Time to wait for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """A model and how to run it."""

    model_path: str
    max_model_len: int
    end_token_ids: tuple[int, ...]
    """Tokens that end a response."""
    rollout: EngineConfig
    number: int = 0
    """Index of this engine among the `engine_num` engines of the model."""
    first_gpu: int = 0
    """Index of the first GPU of the model's engines among the GPUs of this process."""
    num_process_gpus: int | None = None
    """Number of GPUs for the engines of all models; None with a single model."""
    structured_output: bool = False
    """True if responses may be constrained by a JSON Schema, which needs the tokenizer."""
    rope: JsonObject | None = None
    """Keys of the model's config.json with position embeddings, if the user changed these."""
    records_experts: bool = False
    """True if responses come with the experts that were chosen for each token."""
    trusts_code: bool = False
    """True if the Python code that comes with the model is run."""
    sleeps: bool = False
    """True if it gives its device to the trainer by turns."""
    role: str = "the rollout engine"
    """Name of the engine in messages."""


class Engine(Generator, Protocol):
    """A model in memory that generates tokens and accepts new weights.

    `load_weights` is called only while nothing is being generated.
    """

    async def load_weights(self, directory: Path) -> None:
        """Replaces the weights with those of a Hugging Face directory of the same architecture."""
        ...

    @property
    def receivers(self) -> Receivers:
        """The engine's processes that would receive weights."""
        ...

    async def receive_weights(self, slot: ReceiverSlot) -> str:
        """Replaces the weights with those sent from a trainer's memory.

        Returns the reason why they must not be used and others must be loaded; empty on success.
        Like `load_weights`, it is called only while nothing is being generated.
        """
        ...

    async def check(self) -> None:
        """Raises EngineDied if the engine has died."""
        ...

    async def close(self) -> None:
        """Releases the engine's resources."""
        ...


@runtime_checkable
class SleepingEngine(Engine, Protocol):
    """An engine that gives its device to the trainer by turns."""

    async def sleep(self, level: int) -> None:
        """Frees the memory of its device and lets go of the device's lock.

        Level 1 keeps the weights in the host's memory; after level 2 weights must be loaded before
        it generates. It is called only while nothing is being generated.
        """
        ...

    async def wake_up(self, device: DeviceRequest) -> bool:
        """Takes the device's lock in the process that uses the device, then its memory.

        Returns False, and sleeps on, if another process has the device for all that time.
        """
        ...
