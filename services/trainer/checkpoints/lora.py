"""The policy's LoRA adapter: disabled for the reference, merged for rollouts, saved on its own."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from peft import PeftModel
from peft.tuners.lora import LoraLayer
from peft.utils.save_and_load import get_peft_model_state_dict
from safetensors.torch import save_file
from torch import nn
from torch.distributed.tensor import DTensor
from verl.utils.device import get_device_id

from services.trainer.checkpoints.checkpoints import base_hash
from services.trainer.checkpoints.split import (
    GatherableTensor,
    MergedTensor,
    SplitTensor,
    gathered_to,
    merge,
)
from services.trainer.collectives import Ranks, hash_on_rank_0
from trinity.errors import UserError

ADAPTER_DIRECTORY = "lora_adapter"
WEIGHTS_NAME = "adapter_model.safetensors"
ADAPTER = "default"
"""The name that peft gives an unnamed adapter."""
_BASE = ".base_layer.weight"
_INSIDE = "base_model.model."
"""The prefix of peft's names of the model's own weights."""


class LoraAdapter:
    """A LoRA adapter around a sharded policy. Methods that return tensors are collective.

    with adapter.disabled():
        reference = infer(...)
    weights = dict(adapter.merged_weights())
    """

    def __init__(self, module: PeftModel) -> None:
        self._module = module
        self._base_hash: bytes | None = None
        self._layers = {
            name: layer for name, layer in module.named_modules() if isinstance(layer, LoraLayer)
        }

    @contextmanager
    def disabled(self) -> Iterator[None]:
        """Makes the model compute without the adapter.

        peft's own switch also freezes adapters. FSDP checks the dtypes of trainable parameters
        once, before the first pass: with passes in bfloat16 it would then reject the gradients. So
        this sets the field behind peft's switch (peft 0.19 to 0.21, see
        tests/unit/runtime/test_library_internals.py).
        """
        self._set_disabled(off=True)
        try:
            yield
        finally:
            self._set_disabled(off=False)

    def _set_disabled(self, *, off: bool) -> None:
        for layer in self._layers.values():
            layer._disable_adapters = off

    def merged_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields all weights whole, by the model's own names, with the adapter's change added."""
        for name, tensor in self._module.state_dict().items():
            if not _is_of_model(name):
                continue
            whole = full_tensor(tensor)
            if (layer := self._layer_of(name)) is not None:
                down, up = map(full_tensor, _factors_of(layer))
                whole = merge(whole, up, down, layer.scaling[ADAPTER])
            yield _own_name(name), whole

    def split_weights(self, ranks: Ranks) -> Iterator[tuple[str, GatherableTensor]]:
        """Yields the same weights as the ranks hold them; the rank that gathers one merges it."""
        for name, tensor in self._module.state_dict().items():
            if not _is_of_model(name):
                continue
            base = SplitTensor.of(tensor, ranks)
            if (layer := self._layer_of(name)) is None:
                yield _own_name(name), base
                continue
            down, up = (SplitTensor.of(factor, ranks) for factor in _factors_of(layer))
            yield (
                _own_name(name),
                MergedTensor(
                    base=base,
                    up=up,
                    down=down,
                    scaling=layer.scaling[ADAPTER],
                    device=get_device_id(),
                ),
            )

    def _layer_of(self, name: str) -> LoraLayer | None:
        """Returns the layer whose weight has this name, if the adapter changes it."""
        if not name.endswith(_BASE):
            return None
        return self._layers.get(name.removesuffix(_BASE))

    def base_hash(self, ranks: Ranks) -> bytes:
        """Hashes the adapter's base model, equal on all ranks; cached, as it never changes."""
        if self._base_hash is None:
            self._base_hash = hash_on_rank_0(self._base(ranks), base_hash, ranks)
        return self._base_hash

    def _base(self, ranks: Ranks) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields the model's weights whole on the first rank, and the scaling on each layer."""
        weights = self._module.state_dict().items()
        own = ((name, SplitTensor.of(t, ranks)) for name, t in weights if _is_of_model(name))
        for name, whole in gathered_to(0, own, ranks):
            yield _own_name(name), whole
        for name, layer in self._layers.items():
            scaling = torch.tensor(layer.scaling[ADAPTER], dtype=torch.float64)
            yield f"{_own_name(name)}.scaling", scaling

    def weights(self) -> dict[str, torch.Tensor]:
        """Returns the adapter's own weights whole, named as in peft's files."""
        tensors: dict[str, torch.Tensor] = get_peft_model_state_dict(self._module)
        return {
            name: full_tensor(tensor).detach().cpu().contiguous()
            for name, tensor in tensors.items()
        }

    def save(self, directory: Path, *, base_model: str, writes: bool) -> None:
        """Writes the two files that `PeftModel.from_pretrained` reads, if this rank `writes`."""
        weights = self.weights()
        if not writes:
            return
        directory.mkdir()
        save_file(weights, directory / WEIGHTS_NAME, metadata={"format": "pt"})
        config = self._module.peft_config[ADAPTER]
        own_name, was_for_training = config.base_model_name_or_path, config.inference_mode
        config.base_model_name_or_path, config.inference_mode = base_model, True
        try:
            config.save_pretrained(str(directory))
        finally:
            config.base_model_name_or_path, config.inference_mode = own_name, was_for_training


def check_checkpoint_kind(checkpoint: Path, adapter: LoraAdapter | None) -> None:
    """Raises: UserError if only one of checkpoint and policy has an adapter."""
    has_adapter = (checkpoint / ADAPTER_DIRECTORY).is_dir()
    if has_adapter and adapter is None:
        raise UserError(
            f"the checkpoint {checkpoint} is of an adapter: write the `model.lora_configs` that it "
            "was trained with"
        )
    if adapter is not None and not has_adapter:
        raise UserError(
            f"the checkpoint {checkpoint} is of all weights, not of an adapter: remove "
            "`model.lora_configs`, or start a new experiment"
        )


def lora_adapter_of(module: nn.Module) -> LoraAdapter | None:
    """Returns the adapter of an engine's module; None where all weights are trained."""
    return LoraAdapter(module) if isinstance(module, PeftModel) else None


def full_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Gathers a tensor from all ranks' shards; one that is not sharded is returned as it is."""
    if isinstance(tensor, DTensor):
        return tensor.to(get_device_id(), non_blocking=True).full_tensor()
    return tensor


def _is_of_model(name: str) -> bool:
    return ".lora_" not in name


def _own_name(name: str) -> str:
    return name.removeprefix(_INSIDE).replace(".base_layer.", ".")


def _factors_of(layer: LoraLayer) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns A and B, as this rank holds them."""
    return layer.lora_A[ADAPTER].weight, layer.lora_B[ADAPTER].weight
