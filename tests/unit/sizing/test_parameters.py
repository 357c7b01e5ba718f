"""Parameters counted from a config.json are those that the model has."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForTokenClassification

from trinity.config.sizing.model_shape import (
    count_critic_parameters,
    count_parameters,
    read_shape,
    shape_of,
)
from trinity.errors import UserError

SIZES: dict[str, object] = {
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 128,
}
MIXTURE: dict[str, object] = {"num_experts": 4, "moe_intermediate_size": 32}
SHARED: dict[str, object] = {**MIXTURE, "shared_expert_intermediate_size": 48}
SPARSE: dict[str, object] = {"mlp_only_layers": [0], "decoder_sparse_step": 2}
PHI: dict[str, object] = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1}
FAMILIES: list[tuple[str, dict[str, object]]] = [
    ("llama", {}),
    ("llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    ("llama", {"head_dim": 8}),
    ("mistral", {}),
    ("mistral", {"head_dim": 24}),
    ("mixtral", {"num_local_experts": 4}),
    ("qwen2", {}),
    ("qwen2", {"tie_word_embeddings": True}),
    ("qwen2_moe", SHARED),
    ("qwen2_moe", {**SHARED, **SPARSE}),
    ("qwen3", {}),
    ("qwen3", {"head_dim": 16, "attention_bias": True}),
    ("qwen3_moe", MIXTURE),
    ("qwen3_moe", {**MIXTURE, "mlp_only_layers": [1], "head_dim": 16}),
    ("gemma", {}),
    ("gemma2", {}),
    ("gemma3_text", {}),
    ("phi3", PHI),
]


@pytest.mark.parametrize(("family", "more"), FAMILIES)
def test_every_family_is_counted_exactly(
    family: str, more: dict[str, object], tmp_path: Path
) -> None:
    config = AutoConfig.for_model(family, **{**SIZES, **more})
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    path = tmp_path / "config.json"
    for only_differences in (False, True):
        path.write_text(config.to_json_string(use_diff=only_differences))
        shape = read_shape(path)
        assert shape.is_known
        assert count_parameters(shape) == sum(one.numel() for one in model.parameters())


def test_a_critic_has_one_value_in_place_of_the_vocabulary() -> None:
    config = AutoConfig.for_model("qwen2", **SIZES, num_labels=1)
    with torch.device("meta"):
        model = AutoModelForTokenClassification.from_config(config)
    real = sum(one.numel() for name, one in model.named_parameters() if name != "score.bias")
    assert count_critic_parameters(shape_of(json.loads(config.to_json_string()))) == real


@pytest.mark.parametrize(
    ("keys", "parameters"),
    [
        (  # Qwen2.5-1.5B, whose card says 1.54 billion
            {
                "model_type": "qwen2",
                "hidden_size": 1536,
                "num_hidden_layers": 28,
                "num_attention_heads": 12,
                "num_key_value_heads": 2,
                "intermediate_size": 8960,
                "vocab_size": 151936,
                "tie_word_embeddings": True,
            },
            1_543_714_304,
        ),
        (  # Llama-3.1-8B, 8.03 billion
            {
                "model_type": "llama",
                "hidden_size": 4096,
                "num_hidden_layers": 32,
                "num_attention_heads": 32,
                "num_key_value_heads": 8,
                "intermediate_size": 14336,
                "vocab_size": 128256,
            },
            8_030_261_248,
        ),
    ],
)
def test_models_that_people_use(keys: dict[str, object], parameters: int) -> None:
    assert count_parameters(shape_of(keys)) == parameters


def test_a_family_that_is_not_known_says_so() -> None:
    assert not shape_of({**SIZES, "model_type": "brand_new"}).is_known


def test_the_text_part_of_a_model_of_images_is_what_counts(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(
        json.dumps({"model_type": "x", "text_config": {**SIZES, "model_type": "qwen2"}})
    )
    assert read_shape(path).family == "qwen2"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "is no JSON object"),
        ("{", "is no JSON"),
        ('{"model_type": "llama"}', "has no `hidden_size`"),
    ],
)
def test_what_is_no_models_configuration_is_refused(
    text: str, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        read_shape(path)
