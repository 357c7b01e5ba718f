"""Tiny vision models of each family that is supported, made without a hub."""

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from tokenizers.pre_tokenizers import ByteLevel
from transformers import (
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
)

SPECIAL = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>"),
    *("<|image_pad|>", "<|video_pad|>"),
)
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{% if m['content'] is string %}"
    "{{ m['content'] }}{% else %}{% for c in m['content'] %}{% if c['type'] == 'image' %}"
    "<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ c['text'] }}{% endif %}{% endfor %}"
    "{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
KINDS: dict[str, tuple[Any, Any, str, int]] = {
    "qwen2_vl": (Qwen2VLConfig, Qwen2VLForConditionalGeneration, "Qwen2VLProcessor", 14),
    "qwen2_5_vl": (Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration, "Qwen2_5_VLProcessor", 14),
    "qwen3_vl": (Qwen3VLConfig, Qwen3VLForConditionalGeneration, "Qwen3VLProcessor", 16),
}
HIDDEN = 128


def make_vision_model(directory: Path, kind: str = "qwen2_5_vl", *, seed: int = 0) -> Path:
    """Writes weights, tokenizer, chat template and processor of a random model; returns it."""
    _, model_class, processor, patch = KINDS[kind]
    tokenizer = _tokenizer()
    first = tokenizer.convert_tokens_to_ids(SPECIAL[0])
    config = config_of(kind, vocabulary=len(tokenizer), token=first)
    torch.manual_seed(seed)
    model_class(config).float().save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    side = 2 * patch
    images = {
        "do_convert_rgb": True,
        "image_mean": [0.48, 0.46, 0.41],
        "image_std": [0.27, 0.26, 0.28],
        "merge_size": 2,
        "patch_size": patch,
        "temporal_patch_size": 2,
        "size": {"shortest_edge": 4 * side**2, "longest_edge": 64 * side**2},
        "image_processor_type": "Qwen2VLImageProcessor",
        "processor_class": processor,
    }
    videos = {
        "video_processor_type": "Qwen3VLVideoProcessor" if patch == 16 else "Qwen2VLVideoProcessor"
    }
    (directory / "preprocessor_config.json").write_text(json.dumps(images))
    (directory / "video_preprocessor_config.json").write_text(json.dumps({**images, **videos}))
    return directory


def config_of(kind: str, *, vocabulary: int, token: int) -> Any:
    """The configuration of a model whose special tokens stand behind one another from `token`."""
    config_class, _, _, patch = KINDS[kind]
    ids = {name: token + place for place, name in enumerate(SPECIAL)}
    return config_class(
        text_config=_text(kind, vocabulary, ids),
        vision_config=_vision(kind, patch),
        tie_word_embeddings=False,
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
    )


def _tokenizer() -> PreTrainedTokenizerFast:
    """Returns a tokenizer of bytes."""
    letters = sorted(ByteLevel.alphabet())
    vocabulary = {letter: index for index, letter in enumerate(letters)}
    plain = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.decoder = decoders.ByteLevel()
    plain.add_special_tokens(list(SPECIAL))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=plain,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        extra_special_tokens={
            "image_token": "<|image_pad|>",
            "video_token": "<|video_pad|>",
            "vision_bos_token": "<|vision_start|>",
            "vision_eos_token": "<|vision_end|>",
        },
    )
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def _text(kind: str, vocabulary: int, ids: dict[str, int]) -> dict[str, Any]:
    section = {"qwen3_vl": {"mrope_section": [6, 5, 5], "mrope_interleaved": True}}
    return {
        "vocab_size": vocabulary,
        "hidden_size": HIDDEN,
        "intermediate_size": 2 * HIDDEN,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 2048,
        "eos_token_id": ids["<|im_end|>"],
        "pad_token_id": ids["<|endoftext|>"],
        "bos_token_id": None,
        "initializer_range": 0.05,
        "tie_word_embeddings": False,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            **section.get(kind, {"mrope_section": [4, 6, 6]}),
        },
    }


def _vision(kind: str, patch: int) -> dict[str, Any]:
    common = {
        "depth": 2,
        "num_heads": 4,
        "patch_size": patch,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "in_channels": 3,
    }
    if kind == "qwen2_vl":
        return {**common, "embed_dim": 64, "hidden_size": HIDDEN, "mlp_ratio": 2}
    own = {"hidden_size": 64, "intermediate_size": 128, "out_hidden_size": HIDDEN}
    if kind == "qwen2_5_vl":
        return {**common, **own, "window_size": 56, "fullatt_block_indexes": [1]}
    return {**common, **own, "num_position_embeddings": 64, "deepstack_visual_indexes": [0, 1]}
