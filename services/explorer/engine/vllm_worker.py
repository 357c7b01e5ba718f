"""Extension of vLLM's worker, inside its process."""

import os
import tempfile
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trinity.errors import TransferFailed
from trinity.runtime.device_lock import DeviceLock, Holder
from trinity.weights.offer import slot_from_dict

SOCKET_FOLDER = "VLLM_RPC_BASE_PATH"
"""vLLM's variable: the folder of the engine's sockets."""
_LOCKS: dict[str, DeviceLock] = {}
"""Locks of this process, by path: a worker extension has no separate place for them."""

if TYPE_CHECKING:
    from vllm.v1.worker.gpu_worker import Worker as _Worker
else:
    _Worker = object


class WeightReloadExtension(_Worker):  # type: ignore[misc]
    """Loads new weights completely.

    On CPUs each linear layer keeps a packed copy of its weights, made when it is loaded. An output
    head that is tied to the embedding is not loaded by itself, so its copy would stay the old one
    and the engine would combine new layers with an old head.
    """

    @property
    def distributed_init_method(self) -> str:
        """The place where the engine's workers meet, as `meeting_place` has it; vLLM sets it."""
        return self._meeting_place

    @distributed_init_method.setter
    def distributed_init_method(self, given: str) -> None:
        self._meeting_place = meeting_place(given, self.parallel_config.world_size)

    def load_checkpoint(self, directory: str) -> None:
        """Replaces the weights with those of a Hugging Face directory."""
        self.reload_weights(weights_path=directory)
        self._pack_tied_head()

    def receive_weights(self, slot: dict[str, Any]) -> str:
        """Replaces the weights with those that a trainer sends; returns why not to use them, or "".

        Loading always completes, so that other weights can be loaded after it.
        """
        from trinity.weights.receiving import WeightsReceiver

        try:
            arrival = WeightsReceiver(
                slot_from_dict(slot), index=self.rank, device=str(self.device)
            )
        except TransferFailed as error:
            return str(error)
        self.reload_weights(weights_iterator=arrival.tensors())
        self._pack_tied_head()
        return arrival.finish()

    def take_device(self, path: str, reason: str, seconds: float) -> bool:
        """Takes the lock of the device that this process uses; returns False if others have it.

        The lock is this process': it goes when the process does, with the memory on the device.
        """
        lock = _LOCKS.setdefault(path, DeviceLock(Path(path)))
        return lock.take(Holder.of_this_process("engine", reason), seconds)

    def release_device(self) -> None:
        """Lets go of the lock, if this process has it."""
        for lock in _LOCKS.values():
            lock.release()

    def _pack_tied_head(self) -> None:
        from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

        for module in self.model_runner.get_model().modules():
            if isinstance(module, ParallelLMHead):
                module.quant_method.process_weights_after_loading(module)


def meeting_place(given: str, num_workers: int) -> str:
    """Returns a file where a worker that is alone would open a port of this machine.

    torch opens it on all addresses, even if one is named. vLLM later than 0.27 gives a file by
    itself. Several workers must be given the same one, and only vLLM knows one for them.
    """
    if num_workers > 1 or not given.startswith("tcp://"):
        return given
    folder = os.environ.get(SOCKET_FOLDER) or tempfile.gettempdir()
    if {"#", "?"} & set(folder):  # torch would take what follows for no part of the path
        folder = tempfile.gettempdir()
    return f"file://{folder}/store-{uuid.uuid4().hex}"
