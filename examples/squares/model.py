"""The squares model: an untrained Qwen2.5-VL of about a million parameters and a byte tokenizer.

A picture of 56 x 56 pixels is 16 patches, which become 4 tokens.
"""

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import pre_tokenizers
from transformers import (
    GenerationConfig,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2Tokenizer,
)
from transformers.utils.logging import disable_progress_bar

PAD, END = "<|endoftext|>", "<|end|>"
VISION = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
ROLES = ("<|system|>", "<|user|>", "<|assistant|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}{% if part['type'] == 'image' %}"
    "<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
HEAD, PATCH, MERGE = 32, 14, 2


def save_model(
    directory: Path, seed: int, *, width: int = 128, layers: int = 2, tower_layers: int = 2
) -> None:
    """Write one Hugging Face directory; the same seed gives the same bytes."""
    disable_progress_bar()
    tokenizer = build_tokenizer()
    tokenizer.save_pretrained(directory)
    model = build_model(tokenizer, seed, width=width, layers=layers, tower_layers=tower_layers)
    model.save_pretrained(directory)
    images = processor()
    videos = {**images, "video_processor_type": "Qwen2VLVideoProcessor"}
    (directory / "preprocessor_config.json").write_text(json.dumps(images, indent=2))
    (directory / "video_preprocessor_config.json").write_text(json.dumps(videos, indent=2))


def processor() -> dict[str, Any]:
    """The settings with which pictures are cut: as they are, for sides of 28 to 224 pixels."""
    side = PATCH * MERGE
    return {
        "do_convert_rgb": True,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.25, 0.25, 0.25],
        "merge_size": MERGE,
        "patch_size": PATCH,
        "temporal_patch_size": 2,
        "size": {"shortest_edge": side**2, "longest_edge": 64 * side**2},
        "image_processor_type": "Qwen2VLImageProcessor",
        "processor_class": "Qwen2_5_VLProcessor",
    }


def build_tokenizer() -> Qwen2Tokenizer:
    """One token a byte, so that each digit is a token and any text can be written."""
    specials = [PAD, END, *ROLES, *VISION]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    return Qwen2Tokenizer(
        vocab={token: number for number, token in enumerate([*specials, *alphabet])},
        merges=[],
        unk_token=PAD,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=[*ROLES, *VISION],
        chat_template=CHAT_TEMPLATE,
        model_max_length=256,
    )


def build_model(
    tokenizer: Qwen2Tokenizer, seed: int, *, width: int, layers: int, tower_layers: int
) -> Qwen2_5_VLForConditionalGeneration:
    """Heads of 32 are the smallest that the rollout engine takes on a CPU."""
    start, end, image, video = (tokenizer.convert_tokens_to_ids(token) for token in VISION)
    special = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    config = Qwen2_5_VLConfig(
        text_config={
            "vocab_size": len(tokenizer),
            "hidden_size": width,
            "intermediate_size": 3 * width,
            "num_hidden_layers": layers,
            "num_attention_heads": width // HEAD,
            "num_key_value_heads": width // HEAD,
            "max_position_embeddings": 256,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10.0,
                "mrope_section": [4, 6, 6],
            },
            "initializer_range": 0.05,
            "bos_token_id": None,
            "tie_word_embeddings": True,
            **special,
        },
        vision_config={
            "depth": tower_layers,
            "hidden_size": width,
            "intermediate_size": 2 * width,
            "num_heads": width // HEAD,
            "out_hidden_size": width,
            "patch_size": PATCH,
            "spatial_merge_size": MERGE,
            "temporal_patch_size": 2,
            "window_size": 4 * PATCH,
            "fullatt_block_indexes": list(range(tower_layers)),
            "initializer_range": 0.05,
        },
        tie_word_embeddings=True,
        image_token_id=image,
        video_token_id=video,
        vision_start_token_id=start,
        vision_end_token_id=end,
        **special,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen2_5_VLForConditionalGeneration(config).to(torch.float32)
    model.generation_config = GenerationConfig(bos_token_id=None, **special)
    return model
