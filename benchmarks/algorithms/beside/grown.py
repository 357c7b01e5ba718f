"""A larger model that computes the same as a smaller one, as in Net2Net (arXiv 1511.05641).

New heads, neurons and layers write nothing to the residual stream yet, and its new dimensions hold
nothing yet; they have gradients within the first steps.
"""

import math
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

_WRITERS = ("o_proj.weight", "down_proj.weight", "embed_tokens.weight")
"""The weights that write to the residual stream; the head is tied to the last kind."""


def grown_weights(small: Path, large: Path) -> dict[str, torch.Tensor]:
    """Returns weights for the larger model, of the same family and size of a head.

    What is new and writes nothing keeps the values that the larger model has.
    """
    learned = _weights_in(small)
    grown = _weights_in(large)
    hidden, larger = (found["model.norm.weight"].shape[0] for found in (learned, grown))
    for name, tensor in grown.items():
        if name.endswith(_WRITERS):
            tensor.zero_()
        source = learned.get(name)
        if source is None:
            continue
        if name.endswith("norm.weight"):  # the mean over more dimensions is smaller
            source = source * math.sqrt(hidden / larger)
        tensor[tuple(slice(size) for size in source.shape)] = source
    return grown


def _weights_in(directory: Path) -> dict[str, torch.Tensor]:
    """Returns a model's weights, without a head that is tied."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    weights: dict[str, torch.Tensor] = model.state_dict()
    del weights["lm_head.weight"]
    return weights
