"""A model trains without dropout unless its override asks, and says what it lacks for verl."""

import json
from pathlib import Path

import pytest
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    BloomConfig,
    FalconConfig,
    Gemma2Config,
    Gemma3Config,
    Gemma3TextConfig,
    GPT2Config,
    GptOssConfig,
    PretrainedConfig,
    Qwen2Config,
)
from verl.utils.model import update_model_config

from services.trainer.backend.config_overrides import (
    check_attention,
    check_override,
    load_config,
    name_key_value_heads,
    supports_sdpa,
    with_override,
    without_dropout,
)
from trinity.config.checks.model import WITHOUT_HEADS
from trinity.errors import UserError
from trinity.types import JsonObject


def saved(directory: Path, config: PretrainedConfig) -> Path:
    config.save_pretrained(directory)
    return directory


def test_each_dropout_of_a_model_is_off(tmp_path: Path) -> None:
    directory = saved(tmp_path, GPT2Config(n_layer=1, n_head=2, n_embd=8))
    off = without_dropout(load_config(directory))
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
    assert without_dropout(load_config(saved(tmp_path, Qwen2Config()))) == {}


def test_a_key_that_a_model_has_not_is_refused_unless_it_is_a_dropout_of_0() -> None:
    check_override({"embd_pdrop": 0.0, "attention_dropout": 0.1}, Qwen2Config(), "trainer")
    for key, value in (("embd_pdrop", 0.1), ("rms_nrm_eps", 0.0)):
        with pytest.raises(UserError, match=f"`trainer.override_config.{key}` is no key"):
            check_override({key: value}, Qwen2Config(), "trainer")


def test_names_of_labels_are_not_taken_for_dropouts(tmp_path: Path) -> None:
    labels = {0: "kept", 1: "dropout"}
    config = Qwen2Config(id2label=labels, label2id={name: key for key, name in labels.items()})
    assert config.to_dict()["label2id"] == {"kept": 0, "dropout": 1}
    assert without_dropout(load_config(saved(tmp_path, config))) == {}


def test_dropouts_of_a_part_are_off(tmp_path: Path) -> None:
    text = Gemma3TextConfig(num_hidden_layers=1, attention_dropout=0.5)
    directory = saved(tmp_path, Gemma3Config(text_config=text))
    assert without_dropout(load_config(directory)) == {"text_config": {"attention_dropout": 0.0}}


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


@pytest.mark.parametrize("is_nested", [False, True])
def test_flash_attention_is_refused_where_it_cannot_run(*, is_nested: bool) -> None:
    asked: JsonObject = {"attn_implementation": "flash_attention_2"}
    override: JsonObject = {"model_config": asked} if is_nested else asked
    check_attention(override, "trainer", {}, has_flash=True)
    check_attention({}, "trainer", {}, has_flash=False)
    with pytest.raises(UserError, match=r"`trainer\.override_config.*needs a GPU and flash-attn"):
        check_attention(override, "trainer", {}, has_flash=False)


@pytest.mark.parametrize(
    ("asked", "config", "lost"),
    [
        ("sdpa", Gemma2Config(), "the soft cap of scores"),
        ("flash_attention_3", Gemma2Config(), "the soft cap of scores"),
        ("flash_attention_2", GptOssConfig(), "the sinks"),
        ("sdpa", FalconConfig(alibi=True), "the biases by distance"),
        ("eager", Gemma2Config(), None),
        ("flash_attention_2", Gemma2Config(), None),
        ("sdpa", Gemma2Config(attn_logit_softcapping=None), None),
    ],
)
def test_an_attention_that_would_drop_a_part_of_the_model_is_refused(
    asked: str, config: PretrainedConfig, lost: str | None
) -> None:
    def check() -> None:
        check_attention({"attn_implementation": asked}, "trainer", config.to_dict(), has_flash=True)

    if lost is None:
        check()
        return
    with pytest.raises(UserError, match=f"{asked}` would leave out {lost}.*or give `eager`"):
        check()


def test_kinds_that_transformers_refuses_with_sdpa_are_known() -> None:
    assert not supports_sdpa(GptOssConfig())
    assert not supports_sdpa(BloomConfig())
    assert supports_sdpa(Qwen2Config())


@pytest.mark.parametrize(
    "kind", ["gpt2", "gpt_neox", "persimmon", "bloom", "falcon", "gptj", "mpt", "opt"]
)
def test_heads_without_a_number_for_keys_get_that_name_and_it_is_not_saved(
    tmp_path: Path, kind: str
) -> None:
    config = CONFIG_MAPPING[kind]()
    name_key_value_heads(config, tmp_path)
    assert config.num_key_value_heads == config.num_attention_heads
    assert "num_key_value_heads" not in config.to_dict()
    assert CONFIG_MAPPING["llama"](num_key_value_heads=2).num_key_value_heads == 2


@pytest.mark.parametrize("kind", sorted(WITHOUT_HEADS))
def test_models_without_attention_heads_get_a_sentence(tmp_path: Path, kind: str) -> None:
    with pytest.raises(UserError, match=f"of type `{kind}`, whose configuration has no attention"):
        name_key_value_heads(CONFIG_MAPPING[kind](), tmp_path)


def test_a_configuration_of_the_models_own_code_is_read_where_that_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "m"))
    monkeypatch.syspath_prepend(str(tmp_path / "m"))
    model = saved(tmp_path / "model", Qwen2Config())
    classes = {"AutoConfig": "configuration_own.OwnConfig"}
    described = json.loads((model / "config.json").read_text())
    described |= {"model_type": "own_of_a_test", "auto_map": classes}
    (model / "config.json").write_text(json.dumps(described))
    (model / "configuration_own.py").write_text(
        "from transformers import Qwen2Config\n"
        "class OwnConfig(Qwen2Config):\n    model_type = 'own_of_a_test'\n"
    )
    with pytest.raises(ValueError, match="trust_remote_code"):
        load_config(model)
    assert type(load_config(model, trusts_code=True)).__name__ == "OwnConfig"
