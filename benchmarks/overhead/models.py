"""A model of about 76 million parameters, with the tokenizer of the addition example."""

from pathlib import Path

import torch
from transformers import GenerationConfig, Qwen2Config, Qwen2ForCausalLM

from examples.addition.model import build_tokenizer


def write_big_model(directory: Path) -> Path:
    """Untrained: what it answers does not matter, how long it takes does."""
    tokenizer = build_tokenizer()
    special = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=768,
        intermediate_size=2048,
        num_hidden_layers=11,
        num_attention_heads=12,
        num_key_value_heads=12,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        bos_token_id=None,
        **special,
    )
    torch.manual_seed(1)
    model = Qwen2ForCausalLM(config).to(torch.float32)
    model.generation_config = GenerationConfig(bos_token_id=None, **special)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory
