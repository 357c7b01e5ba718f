"""What is added to vLLM's worker, inside its process."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.v1.worker.gpu_worker import Worker as _Worker
else:
    _Worker = object


class CheckpointLoading(_Worker):  # type: ignore[misc]
    """Loads new weights whole.

    On CPUs each linear layer keeps a packed copy of its weights, made when it is loaded. An output
    head that is tied to the embedding is not loaded by itself, so its copy would stay the old one
    and the engine would go on with new layers under an old head.
    """

    def load_checkpoint(self, directory: str) -> None:
        """Replace the weights by those of a Hugging Face directory."""
        from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

        self.reload_weights(weights_path=directory)
        for module in self.model_runner.get_model().modules():
            if isinstance(module, ParallelLMHead):
                module.quant_method.process_weights_after_loading(module)
