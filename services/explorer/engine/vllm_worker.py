"""Extension of vLLM's worker, inside its process."""

from typing import TYPE_CHECKING, Any

from trinity.errors import TransferFailed
from trinity.weights.offer import slot_from_dict

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

    def _pack_tied_head(self) -> None:
        from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

        for module in self.model_runner.get_model().modules():
            if isinstance(module, ParallelLMHead):
                module.quant_method.process_weights_after_loading(module)
