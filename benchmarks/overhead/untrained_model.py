"""Untrained models: only the time of their answers matters."""

from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig, Qwen2Config, Qwen2ForCausalLM

from examples.addition.model import build_tokenizer


def write_untrained_model(directory: Path, *, seed: int, **shape: Any) -> None:
    """Writes a Hugging Face directory with the tokenizer of the addition example.

    The same seed gives the same bytes. The shape has the names of `Qwen2Config`.
    """
    tokenizer = build_tokenizer()
    tokenizer.save_pretrained(directory)
    special = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    config = Qwen2Config(
        vocab_size=len(tokenizer), tie_word_embeddings=True, bos_token_id=None, **special, **shape
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen2ForCausalLM(config).to(torch.float32)
    model.generation_config = GenerationConfig(bos_token_id=None, **special)
    model.save_pretrained(directory)


def write_big_model(directory: Path) -> Path:
    """Writes one of about 76 million parameters."""
    write_untrained_model(
        directory,
        seed=1,
        hidden_size=768,
        intermediate_size=2048,
        num_hidden_layers=11,
        num_attention_heads=12,
        num_key_value_heads=12,
        max_position_embeddings=256,
    )
    return directory
