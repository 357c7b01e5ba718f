"""An untrained model of a tenth of a million parameters, with the addition example's tokenizer."""

from pathlib import Path

from transformers.utils.logging import disable_progress_bar

from benchmarks.overhead.untrained_model import write_untrained_model
from examples.addition.model import MAX_LENGTH


def save_model(directory: Path, seed: int) -> None:
    """Writes one Hugging Face directory; the same seed gives the same bytes."""
    disable_progress_bar()
    write_untrained_model(
        directory,
        seed=seed,
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=MAX_LENGTH,
        rope_parameters={"rope_type": "default", "rope_theta": 100.0},
        initializer_range=0.05,
    )
