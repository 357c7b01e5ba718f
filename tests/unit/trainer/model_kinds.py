"""Small models of each kind that the trainer takes, with all that a kind has switched on."""

from collections.abc import Mapping
from pathlib import Path

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

VOCABULARY = 99
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
SIZES: dict[str, object] = {
    **HEADS,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "intermediate_size": 48,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.1,
    "moe_intermediate_size": 32,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "n_embd": 64,
    "n_head": 4,
    "n_layer": 2,
    "n_positions": 64,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "v_head_dim": 16,
}
"""Sizes, by the names that the kinds of models have for them."""
FEATURES: dict[str, object] = {
    "sliding_window": 8,
    "attn_logit_softcapping": 3.0,
    "final_logit_softcapping": 5.0,
    "query_pre_attn_scalar": 10,
    "attention_bias": True,
    "use_qkv_bias": True,
    "mlp_bias": True,
    "use_bias": True,
    "attention_multiplier": 0.4,
    "embedding_multiplier": 1.5,
    "residual_multiplier": 0.7,
    "logits_scaling": 2.0,
    "logit_scale": 0.5,
    "clip_qkv": 0.5,
}
"""Settings that change attention, the head, or sizes of what flows between them."""
LINEAR = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
PADDED: dict[str, dict[str, object]] = {
    "bloom": {},
    "falcon": {"alibi": True, "bias": True},
    "gemma4_text": {
        "vocab_size_per_layer_input": VOCABULARY,
        "hidden_size_per_layer_input": 8,
        "global_head_dim": 16,
    },
    "gptj": {"rotary_dim": 8},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "llama4_text": {
        "attention_chunk_size": 8,
        "layer_types": ["chunked_attention", "full_attention"],
        "intermediate_size_mlp": 48,
    },
    "mpt": {},
    "opt": {},
    "phimoe": {"sliding_window": 8},
    "qwen3_5_text": LINEAR,
    "qwen3_next": LINEAR,
    "stablelm": {},
}
"""Kinds of which rows are padded, with settings of their own."""
OWN: dict[str, dict[str, object]] = {
    "phimoe": {"sliding_window": None},
    "deepseek_v3": {"v_head_dim": 24},
    "youtu": {"pad_token_id": None},  # transformers sets its embedding to 0 where it loads
}
"""Settings that packed kinds need otherwise."""


def settings_of(kind: str, own: Mapping[str, object] | None = None) -> dict[str, object]:
    """Returns the settings of a small model of a kind, with each feature that the kind has."""
    usual = CONFIG_MAPPING[kind]()
    known = {name: value for name, value in (SIZES | FEATURES).items() if hasattr(usual, name)}
    if "kv_lora_rank" in known:
        known |= {"num_key_value_heads": 4}
        del known["head_dim"]  # such heads have two sizes
    if kind == "falcon":
        del known["head_dim"]  # a property there
    if "sliding_attention" in (getattr(usual, "layer_types", None) or ()):
        known["layer_types"] = ["sliding_attention", "full_attention"]
    return {**known, **(OWN.get(kind, {}) if own is None else own)}


def save_model(directory: Path, config: PretrainedConfig) -> PreTrainedModel:
    """Saves a model with random weights, biases and norms as well; returns it with `eager`."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    model.save_pretrained(directory)
    return model
