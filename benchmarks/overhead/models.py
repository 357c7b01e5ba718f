"""A model of about 76 million parameters, with the tokenizer of the addition example."""

from pathlib import Path

from benchmarks.overhead.untrained_model import write_untrained_model


def write_big_model(directory: Path) -> Path:
    """Untrained: what it answers does not matter, how long it takes does."""
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
