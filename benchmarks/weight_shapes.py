"""Tensors of a model's shapes, without the model: its weights, and an adapter of every layer."""

from collections.abc import Iterator

import torch

from benchmarks.gpu.sizes import Size

Shapes = dict[str, tuple[int, ...]]


def shapes_of(size: Size) -> Shapes:
    """Returns the shapes of a Qwen2 whose output layer is the input's."""
    shapes: Shapes = {"model.embed_tokens.weight": (size.vocabulary, size.hidden)}
    for layer in range(size.layers):
        for name, shape in _linear(size):
            shapes[f"model.layers.{layer}.{name}.weight"] = shape
        for name in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"model.layers.{layer}.{name}.weight"] = (size.hidden,)
    return {**shapes, "model.norm.weight": (size.hidden,)}


def adapter_shapes(size: Size, rank: int) -> Shapes:
    """An adapter of every linear layer, under peft's names."""
    shapes: Shapes = {}
    for layer in range(size.layers):
        for name, (rows, columns) in _linear(size):
            at = f"model.layers.{layer}.{name}"
            shapes[f"{at}.lora_A.weight"] = (rank, columns)
            shapes[f"{at}.lora_B.weight"] = (rows, rank)
    return shapes


def made(shapes: Shapes, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Random tensors, the same each time."""
    torch.manual_seed(1)
    return {name: torch.randn(shape, dtype=dtype) for name, shape in shapes.items()}


def _linear(size: Size) -> Iterator[tuple[str, tuple[int, int]]]:
    kept = size.hidden // size.heads * size.kv_heads
    yield "self_attn.q_proj", (size.hidden, size.hidden)
    yield "self_attn.k_proj", (kept, size.hidden)
    yield "self_attn.v_proj", (kept, size.hidden)
    yield "self_attn.o_proj", (size.hidden, size.hidden)
    yield "mlp.gate_proj", (size.intermediate, size.hidden)
    yield "mlp.up_proj", (size.intermediate, size.hidden)
    yield "mlp.down_proj", (size.hidden, size.intermediate)
