"""An untrained model of a tenth of a million parameters, with the addition example's tokenizer."""

from pathlib import Path

import torch
from transformers import GenerationConfig, Qwen2Config, Qwen2ForCausalLM
from transformers.utils.logging import disable_progress_bar

from examples.addition.model import MAX_LENGTH, build_tokenizer


def save_model(directory: Path, seed: int) -> None:
    """Writes one Hugging Face directory; the same seed gives the same bytes."""
    disable_progress_bar()
    tokenizer = build_tokenizer()
    tokenizer.save_pretrained(directory)
    special = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=MAX_LENGTH,
        rope_parameters={"rope_type": "default", "rope_theta": 100.0},
        initializer_range=0.05,
        tie_word_embeddings=True,
        bos_token_id=None,
        **special,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen2ForCausalLM(config).to(torch.float32)
    model.generation_config = GenerationConfig(bos_token_id=None, **special)
    model.save_pretrained(directory)
