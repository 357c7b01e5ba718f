"""Counts the parameters that a low-rank adapter adds to a model of a given shape."""

import re

from trinity.config.schema.model import ALL_LINEAR, LoRAConfig, Names
from trinity.sizing.model_shape import ModelShape


def count_adapter(shape: ModelShape, lora: LoRAConfig) -> int:
    """Counts two matrices for each adapted layer; experts of a mixture are not linear layers."""
    dense = shape.layers - shape.sparse_layers
    total = 0
    for name, (width, num) in _linear_layers(shape, dense).items():
        if _is_meant(name, lora.targets) and not _is_meant(name, lora.excluded):
            total += num * width
    return lora.lora_rank * total


def _linear_layers(shape: ModelShape, dense: int) -> dict[str, tuple[int, int]]:
    """Returns by name in the first block: inputs plus outputs, and the number of blocks with it."""
    hidden, query, kv, wide = shape.hidden, shape.query_width, shape.kv_width, shape.feed_forward
    attention, inner = "model.layers.0.self_attn", "model.layers.0.mlp"
    return {
        f"{attention}.q_proj": (hidden + query, shape.layers),
        f"{attention}.k_proj": (hidden + kv, shape.layers),
        f"{attention}.v_proj": (hidden + kv, shape.layers),
        f"{attention}.o_proj": (query + hidden, shape.layers),
        f"{inner}.gate_proj": (hidden + wide, dense),
        f"{inner}.up_proj": (hidden + wide, dense),
        f"{inner}.down_proj": (wide + hidden, dense),
    }


def _is_meant(layer: str, names: Names) -> bool:
    if names == ALL_LINEAR:
        return True
    if isinstance(names, str):
        return re.fullmatch(names, layer) is not None
    return any(layer.endswith(f".{name}") for name in names)
