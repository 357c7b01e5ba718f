"""The models and loads that are measured: made here, with random weights."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

DTYPE_BYTES = {"bfloat16": 2, "float32": 4}


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """A Qwen2 of known shape, and its workload."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int
    prompt: int
    response: int
    concurrent: int
    """Responses that are made at a time."""
    rows: int
    """Of a train step."""
    tokens_per_part: int
    """Of a micro-batch."""
    dtype: Literal["bfloat16", "float32"] = "bfloat16"

    @property
    def max_length(self) -> int:
        """Tokens of a prompt and its response."""
        return self.prompt + self.response

    @property
    def kv_bytes_per_token(self) -> int:
        """The bytes that the engine keeps of each token it has seen."""
        head = self.hidden // self.heads
        return 2 * self.layers * self.kv_heads * head * DTYPE_BYTES[self.dtype]

    def attention_flops(self, tokens: int, length: int) -> float:
        """Returns the operations of attention in forward and backward passes."""
        return 6.0 * self.layers * self.hidden * length * tokens


SIZES = {
    "tiny": Size(
        hidden=64, intermediate=96, layers=2, heads=2, kv_heads=2, vocabulary=512,
        prompt=16, response=16, concurrent=8, rows=16, tokens_per_part=256, dtype="float32",
    ),
    "0.5b": Size(
        hidden=896, intermediate=4864, layers=24, heads=14, kv_heads=2, vocabulary=151_936,
        prompt=512, response=1024, concurrent=256, rows=64, tokens_per_part=12_288,
    ),
    "1.5b": Size(
        hidden=1536, intermediate=8960, layers=28, heads=12, kv_heads=2, vocabulary=151_936,
        prompt=512, response=1024, concurrent=256, rows=64, tokens_per_part=12_288,
    ),
    "3b": Size(
        hidden=2048, intermediate=11_008, layers=36, heads=16, kv_heads=2, vocabulary=151_936,
        prompt=512, response=1024, concurrent=256, rows=64, tokens_per_part=8_192,
    ),
}  # fmt: skip


def write_model(directory: Path, size: Size) -> int:
    """A Hugging Face directory without a tokenizer; answers its parameters."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=size.vocabulary,
        hidden_size=size.hidden,
        intermediate_size=size.intermediate,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.kv_heads,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
        dtype=size.dtype,
    )
    torch.manual_seed(1)
    model = Qwen2ForCausalLM(config).to(getattr(torch, size.dtype))
    model.save_pretrained(directory)
    return int(model.num_parameters())
