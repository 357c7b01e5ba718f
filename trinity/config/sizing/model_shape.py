"""The sizes of a model, read from its `config.json` alone."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from trinity.config.plan.arithmetic import changes_logits, dropped_of_text
from trinity.config.schema.model import ALL_LINEAR, LoRAConfig, Names
from trinity.data.conversations import FAMILIES
from trinity.errors import UserError

Keys = Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """The mixture of experts that replaces a feed-forward part."""

    num: int
    per_token: int
    width: int
    shared_width: int = 0
    """Width of the expert that every token passes; 0 if there is none."""
    has_shared_gate: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """The dimensions of a decoder-only language model; widths in numbers of activations."""

    family: str
    """`model_type` of its configuration."""
    is_known: bool
    """True if the family is one whose count of parameters is exact."""
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    feed_forward: int
    vocabulary: int
    is_tied: bool
    """True if input and output embeddings are the same weights."""
    qkv_bias: bool = False
    output_bias: bool = False
    feed_forward_bias: bool = False
    normalizes_qk: bool = False
    norms_per_layer: int = 2
    experts: Experts | None = None
    sparse_layers: int = 0
    """Number of layers that have experts."""
    changes_logits: bool = False
    """True if logits are changed after the head, which is computed whole for that."""
    keeps_scores: bool = False
    """True if attention changes its scores in a way for which they all lie in memory."""
    stored_bytes: int = 2
    """Bytes of a parameter in the model's files."""
    tower: "TowerShape | None" = None
    """The part that reads images, if there is one."""

    @property
    def query_width(self) -> int:
        """Width of all query heads together."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Width of all key heads, or value heads, together."""
        return self.kv_heads * self.head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class TowerShape:
    """The vision tower of a model: it computes `merged` patches for each token of an image."""

    width: int
    layers: int
    feed_forward: int
    merged: int
    parameters: int
    merger_parameters: int
    """Those that compute tokens, and not patches."""
    windowed: int
    """Layers in which a patch attends to a window."""
    window: int
    """Patches of it."""

    def operations(self, images: Sequence[int]) -> int:
        """Returns those of a forward pass over images with these numbers of patches."""
        patches = sum(images)
        of_patch = self.parameters - self.merger_parameters
        linear = of_patch * patches + self.merger_parameters * patches // self.merged
        whole = self.layers - self.windowed
        attended = sum(n * (whole * n + self.windowed * min(n, self.window)) for n in images)
        return 2 * linear + 4 * self.width * attended


@dataclass(frozen=True, slots=True, kw_only=True)
class _FamilyDefaults:
    """The defaults that a family's configurations leave out."""

    qkv_bias: bool = False
    is_tied: bool = False
    normalizes_qk: bool = False
    norms_per_layer: int = 2
    head_dim: int | None = None
    bias_key: str = "attention_bias"
    """Key that switches on the biases of attention; empty if there is none."""


_FAMILIES: dict[str, _FamilyDefaults] = {
    "llama": _FamilyDefaults(),
    "mistral": _FamilyDefaults(bias_key=""),
    "mixtral": _FamilyDefaults(bias_key=""),
    "qwen2": _FamilyDefaults(qkv_bias=True, bias_key=""),
    "qwen2_moe": _FamilyDefaults(qkv_bias=True, bias_key="qkv_bias"),
    "qwen3": _FamilyDefaults(normalizes_qk=True, head_dim=128),
    "qwen3_moe": _FamilyDefaults(normalizes_qk=True),
    "gemma": _FamilyDefaults(is_tied=True, head_dim=256),
    "gemma2": _FamilyDefaults(is_tied=True, head_dim=256, norms_per_layer=4),
    "gemma3_text": _FamilyDefaults(
        is_tied=True, head_dim=256, norms_per_layer=4, normalizes_qk=True
    ),
    "phi3": _FamilyDefaults(bias_key=""),
    "qwen2_vl_text": _FamilyDefaults(qkv_bias=True, bias_key=""),
    "qwen2_5_vl_text": _FamilyDefaults(qkv_bias=True, bias_key=""),
    "qwen3_vl_text": _FamilyDefaults(normalizes_qk=True, head_dim=128),
}


def read_shape(path: Path) -> ModelShape:
    """Reads the shape of the model whose `config.json` is `path`.

    Raises: UserError for a file that cannot be read or lacks a size.
    """
    try:
        keys = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise UserError(f"{path} is no JSON ({error}): give a model's config.json") from error
    if not isinstance(keys, dict):
        raise UserError(f"{path} is no JSON object: give a model's config.json")
    shape = shape_of(keys.get("text_config", keys), str(path))
    return replace(shape, tower=tower_of(keys, shape.hidden))


def tower_of(keys: Keys, hidden: int) -> TowerShape | None:
    """Returns the shape of the vision tower of a family whose images are read."""
    vision, kind = keys.get("vision_config"), keys.get("model_type")
    if kind not in FAMILIES or not isinstance(vision, dict):
        return None
    is_oldest, is_newest = kind == "qwen2_vl", kind == "qwen3_vl"
    width = _number(vision, "embed_dim", 1280) if is_oldest else _number(vision, "hidden_size", 0)
    wide = _number(vision, "intermediate_size", 4 * width)
    if is_oldest:
        ratio = vision.get("mlp_ratio", 4)
        wide = int(ratio * width) if isinstance(ratio, int | float) else 4 * width
    out = hidden if is_oldest else _number(vision, "out_hidden_size", hidden)
    layers, merged = _number(vision, "depth", 0), _number(vision, "spatial_merge_size", 2) ** 2
    norm = width if kind == "qwen2_5_vl" else 2 * width
    patch = width * _number(vision, "in_channels", 3) * _number(vision, "temporal_patch_size", 2)
    patch *= _number(vision, "patch_size", 14) ** 2
    dense = 3 * width * wide + 2 * wide if kind == "qwen2_5_vl" else 2 * width * wide + wide
    block = 2 * norm + 4 * width**2 + 4 * width + dense + width
    joined = merged * width
    merger = joined * (joined + 1) + out * (joined + 1)
    parameters = patch + layers * block + norm
    if is_newest:
        parameters += width + width * _number(vision, "num_position_embeddings", 0)
        merger += _length(vision, "deepstack_visual_indexes") * (2 * joined + merger)
    is_windowed = kind == "qwen2_5_vl"
    side = _number(vision, "window_size", 112) // _number(vision, "patch_size", 14)
    return TowerShape(
        width=width,
        layers=layers,
        feed_forward=wide,
        merged=merged,
        parameters=parameters + merger,
        merger_parameters=merger,
        windowed=layers - _length(vision, "fullatt_block_indexes") if is_windowed else 0,
        window=side**2,
    )


def _length(keys: Keys, key: str) -> int:
    value = keys.get(key)
    return len(value) if isinstance(value, list) else 0


def shape_of(keys: Keys, name: str = "config.json") -> ModelShape:
    """Returns the shape from a configuration's keys."""
    kind = str(keys.get("model_type", ""))
    family = _FAMILIES.get(kind, _FamilyDefaults())
    hidden, heads = _size(keys, "hidden_size", name), _size(keys, "num_attention_heads", name)
    layers = _size(keys, "num_hidden_layers", name)
    experts = _experts(keys, kind)
    has_bias = bool(keys.get(family.bias_key, family.qkv_bias)) if family.bias_key else False
    return ModelShape(
        family=kind,
        is_known=kind in _FAMILIES,
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=_number(keys, "num_key_value_heads", heads),
        head_dim=_number(keys, "head_dim", family.head_dim or hidden // heads),
        feed_forward=_number(keys, "intermediate_size", 4 * hidden),
        vocabulary=_size(keys, "vocab_size", name),
        is_tied=bool(keys.get("tie_word_embeddings", family.is_tied)),
        qkv_bias=has_bias or (family.qkv_bias and not family.bias_key),
        output_bias=has_bias and family.bias_key == "attention_bias",
        feed_forward_bias=bool(keys.get("mlp_bias", False)),
        normalizes_qk=family.normalizes_qk,
        norms_per_layer=family.norms_per_layer,
        experts=experts,
        sparse_layers=_sparse_layers(keys, layers) if experts else 0,
        changes_logits=changes_logits(keys),
        keeps_scores=dropped_of_text("sdpa", keys) is not None,
        stored_bytes=4 if "float32" in (keys.get("dtype"), keys.get("torch_dtype")) else 2,
    )


def _experts(keys: Keys, kind: str) -> Experts | None:
    num = _number(keys, "num_experts", 0) or _number(keys, "num_local_experts", 0)
    if num <= 0:
        return None
    shared = _number(keys, "shared_expert_intermediate_size", 0) if kind == "qwen2_moe" else 0
    return Experts(
        num=num,
        per_token=_number(keys, "num_experts_per_tok", 2),
        width=_number(keys, "moe_intermediate_size", _number(keys, "intermediate_size", 0)),
        shared_width=shared,
        has_shared_gate=shared > 0,
    )


def _sparse_layers(keys: Keys, layers: int) -> int:
    dense = keys.get("mlp_only_layers")
    step = max(_number(keys, "decoder_sparse_step", 1), 1)
    left_out = set(dense) if isinstance(dense, list) else set()
    return sum(i not in left_out and (i + 1) % step == 0 for i in range(layers))


def _size(keys: Keys, key: str, name: str) -> int:
    value = keys.get(key)
    if not isinstance(value, int) or value <= 0:
        raise UserError(f"{name} has no `{key}`: give the config.json of a causal language model")
    return value


def _number(keys: Keys, key: str, default: int) -> int:
    value = keys.get(key)
    return value if isinstance(value, int) else default


def count_parameters(shape: ModelShape) -> int:
    """Counts all of the policy's parameters, tied embeddings once."""
    return count_backbone(shape) + (0 if shape.is_tied else shape.vocabulary * shape.hidden)


def count_critic_parameters(shape: ModelShape) -> int:
    """Counts the same model with one output value instead of the vocabulary's logits."""
    return count_backbone(shape) + shape.hidden


def count_backbone(shape: ModelShape) -> int:
    """Counts the parameters without the output embeddings."""
    embeddings = shape.vocabulary * shape.hidden
    dense_layers = shape.layers - shape.sparse_layers
    return (
        embeddings
        + (shape.tower.parameters if shape.tower is not None else 0)
        + shape.layers * (_attention(shape) + _norms(shape))
        + dense_layers * _feed_forward(shape)
        + shape.sparse_layers * _mixture(shape)
        + shape.hidden
    )


def layer_parameters(shape: ModelShape) -> int:
    """Counts the parameters of the largest layer."""
    inner = _mixture(shape) if shape.sparse_layers else _feed_forward(shape)
    return _attention(shape) + _norms(shape) + inner


def _attention(shape: ModelShape) -> int:
    query, kv = shape.query_width, shape.kv_width
    weights = shape.hidden * (2 * query + 2 * kv)
    biases = (query + 2 * kv if shape.qkv_bias else 0) + (shape.hidden if shape.output_bias else 0)
    return weights + biases


def _norms(shape: ModelShape) -> int:
    of_heads = 2 * shape.head_dim if shape.normalizes_qk else 0
    return shape.norms_per_layer * shape.hidden + of_heads


def _feed_forward(shape: ModelShape) -> int:
    """Counts gate, up and down projections."""
    biases = 2 * shape.feed_forward + shape.hidden if shape.feed_forward_bias else 0
    return 3 * shape.hidden * shape.feed_forward + biases


def count_experts(shape: ModelShape) -> int:
    """Counts the parameters of all experts that tokens are routed to."""
    if shape.experts is None:
        return 0
    return shape.sparse_layers * shape.experts.num * 3 * shape.hidden * shape.experts.width


def _mixture(shape: ModelShape) -> int:
    """Counts the experts, the router, and the expert that all tokens share."""
    experts = shape.experts
    if experts is None:
        return 0
    shared = 3 * shape.hidden * experts.shared_width
    gate = shape.hidden if experts.has_shared_gate else 0
    return experts.num * (3 * shape.hidden * experts.width + shape.hidden) + shared + gate


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
