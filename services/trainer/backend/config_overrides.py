"""Checks of users' model overrides and of the modules imported before a model is built."""

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import JsonValue
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, PretrainedConfig

from trinity.config.error_collector import did_you_mean
from trinity.config.plan.arithmetic import (
    NESTED_OVERRIDE,
    Keys,
    check_dropped,
    is_dropout,
    model_keys_of,
    text_keys,
)
from trinity.config.plan.rope import ROPE_KEYS, changes_rope, rope_parameters
from trinity.config.schema.model import ModelConfig
from trinity.errors import UserError

NOT_OF_THE_MODEL = frozenset({"attn_implementation"})
FLASH_ATTENTION = "flash_attention_2"
"""The kernel of the package flash-attn, as transformers names it."""


def import_library(name: str | None, section: str) -> None:
    """Raises: UserError where the module cannot be imported."""
    if name is None:
        return
    try:
        importlib.import_module(name)
    except ImportError as error:
        raise UserError(
            f"`{section}.external_lib: {name}` cannot be imported ({error}): install it where "
            "the trainer runs"
        ) from error


def without_rope(override: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Returns the override without position embeddings, which verl would lose."""
    rest = {key: value for key, value in override.items() if key not in ROPE_KEYS}
    nested = override.get(NESTED_OVERRIDE)
    return {**rest, NESTED_OVERRIDE: without_rope(nested)} if isinstance(nested, dict) else rest


def lay_rope(
    config: PretrainedConfig,
    keys: Keys,
    override: Mapping[str, JsonValue],
    model: ModelConfig | None,
) -> None:
    """Sets position embeddings of `override_config`, and over them those of section `model`."""
    nested = override.get(NESTED_OVERRIDE)
    overridden = (nested if isinstance(nested, dict) else override).keys() & ROPE_KEYS
    has_own = model is not None and changes_rope(model)
    if not (overridden or has_own):
        return
    scaling = model.rope_scaling if model is not None else {}
    theta = model.rope_theta if model is not None else None
    if "rope_theta" in overridden and theta is None:
        given = text_keys(keys)["rope_theta"]
        theta = float(given) if isinstance(given, int | float) else None
    if "rope_scaling" in overridden and not scaling:
        written = text_keys(keys)["rope_scaling"]
        scaling = written if isinstance(written, dict) else {}
    config.get_text_config().rope_parameters = rope_parameters(keys, scaling, theta)


def load_config(directory: Path, *, trusts_code: bool = False) -> PretrainedConfig:
    """Reads a model's configuration, by the model's own code where that is trusted."""
    config: PretrainedConfig = AutoConfig.from_pretrained(directory, trust_remote_code=trusts_code)
    return config


def check_override(
    override: Mapping[str, JsonValue], config: PretrainedConfig, section: str
) -> None:
    """Checks that the model has every key: verl accepts any, so a typo would be ignored.

    Raises: UserError naming the key.
    """
    if not override:
        return
    nested = override.get(NESTED_OVERRIDE)
    known = config.to_dict()
    for key, value in (nested if isinstance(nested, dict) else override).items():
        is_off = is_dropout(key) and value == 0  # also of a model without this dropout
        if key in NOT_OF_THE_MODEL or key in ROPE_KEYS or is_off:
            continue
        where = f"`{section}.override_config.{key}`"
        if key not in known:
            raise UserError(
                f"{where} is no key of the model's config.json{did_you_mean(key, known)}"
            )
        if isinstance(value, dict) and not isinstance(getattr(config, key), PretrainedConfig):
            raise UserError(
                f"{where} cannot be merged into the model's: verl changes single values and the "
                "keys of a model's parts; write it into a copy of config.json"
            )


def check_attention(
    override: Mapping[str, JsonValue], section: str, keys: Keys, *, has_flash: bool
) -> None:
    """Checks an attention that the user chose.

    Raises: UserError if it leaves out something of the model with these keys, or is flash-attn
        where that is not installed, or without a GPU.
    """
    asked = model_keys_of(override).get("attn_implementation")
    if asked == FLASH_ATTENTION and not has_flash:
        raise UserError(
            f"`{section}.override_config.attn_implementation: {asked}` needs a GPU and flash-attn "
            "2.6.2 or later, and the trainer lacks one of them: leave the key out, or install it"
        )
    check_dropped(override, section, keys)


def supports_sdpa(config: PretrainedConfig) -> bool:
    """Returns True if transformers has not found that a kind of models cannot use sdpa."""
    kind = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    return kind is None or bool(kind._supports_sdpa)  # noqa: SLF001 (no public name)


def name_key_value_heads(config: PretrainedConfig, directory: Path) -> None:
    """Makes `num_key_value_heads` another name of a model's heads, if it has no such number.

    verl's engine reads it of every model. Other names are not saved.

    Raises: UserError for a model without attention heads.
    """
    text = config.get_text_config()
    if getattr(text, "num_key_value_heads", None) is not None:
        return
    if getattr(text, "num_attention_heads", None) is None:
        raise UserError(
            f"the model in {directory} is of type `{config.model_type}`, whose configuration has "
            "no attention heads, which verl's engine reads of every model that it trains: "
            "choose a model that has them, such as one of Qwen's or Llama's"
        )
    heads = text.attribute_map.get("num_attention_heads", "num_attention_heads")
    type(text).attribute_map = {**text.attribute_map, "num_key_value_heads": heads}


def without_dropout(config: PretrainedConfig) -> dict[str, JsonValue]:
    """Returns the override that turns off each dropout of a model and of its parts.

    The log-probabilities in ratios are computed without dropout, so training with dropout would
    compare different policies.
    """
    return _off(config.to_dict())


def _off(values: Mapping[str, Any]) -> dict[str, JsonValue]:
    off: dict[str, JsonValue] = {}
    for key, value in values.items():
        if key.endswith("_config") and isinstance(value, Mapping):
            off |= {key: inner} if (inner := _off(value)) else {}
        elif is_dropout(key) and isinstance(value, int | float) and value > 0:
            off[key] = 0.0
    return off


def with_override(
    dropout_off: Mapping[str, JsonValue],
    kernel: Mapping[str, JsonValue],
    override: Mapping[str, JsonValue],
) -> dict[str, JsonValue]:
    """Returns the override for verl; the user's values win, so that dropout can be enabled."""
    nested = override.get(NESTED_OVERRIDE)
    if isinstance(nested, dict):
        return {**kernel, **override, NESTED_OVERRIDE: _merged(dropout_off, nested)}
    return {**kernel, **_merged(dropout_off, override)}


def _merged(below: Mapping[str, JsonValue], above: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    merged = {**below, **above}
    for key, inner in below.items():
        own = above.get(key)
        if isinstance(inner, dict) and isinstance(own, dict):
            merged[key] = {**inner, **own}
    return merged
