"""The addition model: an untrained Qwen2 of about 0.9 million parameters and a byte tokenizer.

A prompt is nine tokens, an answer with its end token three or four.
"""

from pathlib import Path

import torch
from tokenizers import pre_tokenizers
from transformers import GenerationConfig, Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer
from transformers.utils.logging import disable_progress_bar

PAD, END = "<|endoftext|>", "<|end|>"
ROLES = ("<|system|>", "<|user|>", "<|assistant|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<|{{ message['role'] }}|>{{ message['content'] }}<|end|>"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
MAX_LENGTH = 256


def save_model(directory: Path, seed: int) -> None:
    """Write one Hugging Face directory; the same seed gives the same bytes."""
    disable_progress_bar()
    tokenizer = build_tokenizer()
    tokenizer.save_pretrained(directory)
    build_model(tokenizer, seed).save_pretrained(directory)


def build_tokenizer() -> Qwen2Tokenizer:
    """One token a byte, so that each digit is a token and any text can be written.

    It is of the class that `AutoTokenizer` insists on for a Qwen2 model, whatever was saved.
    """
    specials = [PAD, END, *ROLES]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    return Qwen2Tokenizer(
        vocab={token: number for number, token in enumerate([*specials, *alphabet])},
        merges=[],
        unk_token=PAD,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=list(ROLES),
        chat_template=CHAT_TEMPLATE,
        model_max_length=MAX_LENGTH,
    )


def build_model(tokenizer: Qwen2Tokenizer, seed: int) -> Qwen2ForCausalLM:
    """Heads of 32 are the smallest that the rollout engine takes on a CPU.

    Positions turn fast (`rope_theta`) since a sequence has thirteen, and weights start larger than
    a big model's: both make the time to learn depend less on the seed.
    """
    special = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=MAX_LENGTH,
        rope_parameters={"rope_type": "default", "rope_theta": 10.0},
        initializer_range=0.05,
        tie_word_embeddings=True,
        bos_token_id=None,
        **special,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen2ForCausalLM(config).to(torch.float32)
    model.generation_config = GenerationConfig(bos_token_id=None, **special)
    return model
