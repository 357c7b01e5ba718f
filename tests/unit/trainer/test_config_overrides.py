"""A model trains without dropout unless its override asks, and says what it lacks for verl."""

from pathlib import Path

import pytest
from transformers import (
    AutoConfig,
    Gemma3Config,
    Gemma3TextConfig,
    GPT2Config,
    PretrainedConfig,
    Qwen2Config,
)
from verl.utils.model import update_model_config

from services.trainer.backend.config_overrides import (
    check_heads,
    with_override,
    without_dropout,
)
from trinity.errors import UserError
from trinity.types import JsonObject


def saved(directory: Path, config: PretrainedConfig) -> Path:
    config.save_pretrained(directory)
    return directory


def test_each_dropout_of_a_model_is_off(tmp_path: Path) -> None:
    directory = saved(tmp_path, GPT2Config(n_layer=1, n_head=2, n_embd=8))
    off = without_dropout(directory)
    assert off == {
        "attn_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "resid_pdrop": 0.0,
        "summary_first_dropout": 0.0,
    }
    config = AutoConfig.from_pretrained(directory)
    update_model_config(config, override_config_kwargs=with_override(off, {}, {}))
    assert (config.attn_pdrop, config.resid_pdrop, config.n_embd) == (0.0, 0.0, 8)


def test_a_model_without_dropout_is_left_as_it_is(tmp_path: Path) -> None:
    assert without_dropout(saved(tmp_path, Qwen2Config())) == {}


def test_names_of_labels_are_not_taken_for_dropouts(tmp_path: Path) -> None:
    labels = {0: "kept", 1: "dropout"}
    config = Qwen2Config(id2label=labels, label2id={name: key for key, name in labels.items()})
    assert config.to_dict()["label2id"] == {"kept": 0, "dropout": 1}
    assert without_dropout(saved(tmp_path, config)) == {}


def test_dropouts_of_a_part_are_off(tmp_path: Path) -> None:
    text = Gemma3TextConfig(num_hidden_layers=1, attention_dropout=0.5)
    directory = saved(tmp_path, Gemma3Config(text_config=text))
    assert without_dropout(directory) == {"text_config": {"attention_dropout": 0.0}}


def test_dropout_that_is_asked_for_stays() -> None:
    off: JsonObject = {"attention_dropout": 0.0, "text_config": {"hidden_dropout": 0.0}}
    asked: JsonObject = {"attention_dropout": 0.25, "text_config": {"layers": 2}}
    kernel: JsonObject = {"attn_implementation": "eager"}
    merged: JsonObject = {
        "attention_dropout": 0.25,
        "text_config": {"hidden_dropout": 0.0, "layers": 2},
    }
    assert with_override(off, kernel, asked) == {**kernel, **merged}
    nested = with_override(off, kernel, {"model_config": asked})
    assert nested == {**kernel, "model_config": merged}


def test_a_model_that_verl_cannot_train_gets_a_sentence(tmp_path: Path) -> None:
    check_heads(saved(tmp_path / "qwen", Qwen2Config()))
    with pytest.raises(UserError, match="`gpt2`, whose configuration has no `num_key_value_heads`"):
        check_heads(saved(tmp_path / "gpt", GPT2Config()))
