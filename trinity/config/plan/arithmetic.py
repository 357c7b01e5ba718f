"""Packed rows, shared sequences, heads in chunks: what computes them, and which models cannot."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from trinity.config.schema.trainer import TrainerConfig
from trinity.data.conversations import FAMILIES
from trinity.errors import UserError
from trinity.runtime.json_values import JsonValue

Keys = Mapping[str, JsonValue]
"""The keys of a model's config.json, with the user's overrides."""

NESTED_OVERRIDE = "model_config"
"""If this key is in an override, verl takes the keys below it for the model's."""

HEAD_CHUNK_TOKENS = 512
"""Tokens whose logits exist at the same time where the head is computed in chunks."""
PACKABLE = frozenset(
    """
    apertus arcee bitnet cohere cohere2 cwm deepseek_v2 deepseek_v3 ernie4_5 ernie4_5_moe exaone4
    exaone_moe flex_olmo gemma gemma2 gemma3_text glm glm4 glm4_moe glm4_moe_lite gpt2 gpt_bigcode
    gpt_neox gpt_oss granite granitemoe granitemoeshared helium hunyuan_v1_dense hunyuan_v1_moe
    hyperclovax jetmoe llama minimax_m2 ministral ministral3 mistral mixtral nanochat olmo olmo2
    olmo3 olmoe persimmon phi phi3 phimoe qwen2 qwen2_moe qwen3 qwen3_moe seed_oss smollm3
    starcoder2 vaultgemma youtu
    """.split()  # noqa: SIM905 (one name a line would be a page)
)
"""Kinds of models that were seen to give packed rows the logits that they give each row alone.

Others may have biases by distance (bloom, mpt), hand a state from token to token (mamba,
qwen3_next), not tell attention where rows begin (stablelm), or use their own attention function
(gptj).
"""
_WINDOW_IN_MASK_ALONE = frozenset({"phimoe"})
"""Kinds whose attention is not told of their window, so that packed rows would have none."""
_TOKEN_BY_TOKEN = frozenset({"full_attention", "sliding_attention"})
"""Kinds of layers that see only what attention lets them see."""
_SCALED_LOGITS = (
    *("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap"),
    *("logit_scale", "logits_scaling", "lm_head_multiplier"),
)
"""Keys that change logits after the head; models multiply by a scale of 1 as well."""
PACKED_ATTENTION = "trinity_packed"
"""The name of our own attention among those of transformers."""
_SOFT_CAP, _SINKS, _BY_DISTANCE = "softcap", "s_aux", "alibi"
SCORE_CHANGES = {
    _SOFT_CAP: "the soft cap of scores (`attn_logit_softcapping`)",
    _SINKS: "the sinks of attention",
    _BY_DISTANCE: "the biases by distance (`alibi`)",
}
"""Changes of scores that not every attention makes, by their arguments in transformers."""
CARRIED: Mapping[str, tuple[str, ...]] = {
    "eager": (_SOFT_CAP, _SINKS, _BY_DISTANCE),
    "flex_attention": (_SOFT_CAP, _SINKS),
    "flash_attention_2": (_SOFT_CAP,),
    PACKED_ATTENTION: (_SOFT_CAP, _SINKS),
}
"""Those that each attention makes, in both passes; others make none, or are not known to."""
_WITH_SINKS = frozenset({"deepseek_v4", "gpt_oss", "openai_privacy_filter"})
"""Kinds with sinks, for which their configurations have no key."""


def model_keys(directory: Path, override: Mapping[str, JsonValue]) -> Keys | None:
    """Returns the keys of a model's config.json with the user's laid over them.

    Returns None where there is no such file that can be read: the model may be on the hub.
    """
    try:
        keys = json.loads((directory / "config.json").read_bytes())
    except (OSError, ValueError):
        return None
    return laid_over(keys, override)


def laid_over(keys: Keys, override: Mapping[str, JsonValue]) -> Keys:
    """Lays the user's keys over a model's, and those of a part of it over the part's."""
    laid = {**keys, **model_keys_of(override)}
    for key, value in laid.items():
        own = keys.get(key)
        if key.endswith("_config") and isinstance(own, dict) and isinstance(value, dict):
            laid[key] = {**own, **value}
    return laid


def model_keys_of(override: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Returns the keys of the model that an `override_config` gives."""
    nested = override.get(NESTED_OVERRIDE)
    return {**override, **(nested if isinstance(nested, dict) else {})}


def text_keys(keys: Keys) -> Keys:
    """Returns the keys of a model's language part."""
    inner = keys.get("text_config")
    return {**keys, **inner} if isinstance(inner, dict) else keys


def is_eager(override: Mapping[str, JsonValue]) -> bool:
    """Returns True if the user chose the attention that has all scores in memory."""
    return model_keys_of(override).get("attn_implementation") == "eager"


def dropped_by(attention: str, keys: Keys) -> str | None:
    """Returns the first change of scores that an attention would leave out, or None."""
    return dropped_of_text(attention, text_keys(keys))


def dropped_of_text(attention: str, text: Mapping[str, object]) -> str | None:
    """Returns the same for the keys of a language model."""
    asked = {
        _SOFT_CAP: text.get("attn_logit_softcapping"),
        _SINKS: text.get("model_type") in _WITH_SINKS,
        _BY_DISTANCE: text.get("alibi"),
    }
    carried = CARRIED.get(attention, ())
    lost = [SCORE_CHANGES[name] for name, is_on in asked.items() if is_on and name not in carried]
    return lost[0] if lost else None


def check_dropped(override: Mapping[str, JsonValue], section: str, keys: Keys) -> None:
    """Raises: UserError if an attention that the user chose leaves out something of the model."""
    asked = model_keys_of(override).get("attn_implementation")
    if asked is not None and (lost := dropped_by(str(asked), keys)) is not None:
        raise UserError(
            f"`{section}.override_config.attn_implementation: {asked}` would leave out {lost}: "
            "leave the key out, or give `eager`"
        )


def packing_obstacle(keys: Keys) -> str | None:
    """Returns the reason for which a model's rows cannot be packed; None if they can."""
    return next(_packing_obstacles(text_keys(keys)), None)


def _packing_obstacles(keys: Keys) -> Iterator[str]:
    if keys.get("vision_config") and keys.get("model_type") not in FAMILIES.values():
        yield "its positions are those of pictures too"
    layers = keys.get("layer_types")
    kinds = {str(kind) for kind in layers} if isinstance(layers, list) else set()
    if others := sorted(kinds - _TOKEN_BY_TOKEN):
        yield f"its layers of kind {', '.join(others)} would see the row before"
    kind = keys.get("model_type")
    if kind not in PACKABLE and kind not in FAMILIES.values():
        yield f"models of kind {kind} are not known to keep packed rows apart"
    window, longest = keys.get("sliding_window"), keys.get("max_position_embeddings")
    if kind in _WINDOW_IN_MASK_ALONE and _is_below(window, longest):
        yield f"its attention is not told of its window (`sliding_window: {window}`)"
    chosen = keys.get("attn_implementation")
    if chosen is not None and not str(chosen).startswith("flash_attention"):
        yield f"`override_config.attn_implementation: {chosen}` attends to padded rows"


def is_dropout(key: str) -> bool:
    """Returns True for keys of a model's configuration that give a share of dropout."""
    return "dropout" in key or key.endswith("pdrop")


def noise_of(values: Mapping[str, object]) -> list[str]:
    """Returns the keys of a model's configuration with which training draws noise."""
    found = []
    for key, value in values.items():
        if key.endswith("_config") and isinstance(value, Mapping):
            found += noise_of(value)
        elif isinstance(value, int | float) and value > 0 and (is_dropout(key) or "jitter" in key):
            found.append(key)
    return found


def _is_below(window: JsonValue, longest: JsonValue) -> bool:
    return isinstance(window, int) and not (isinstance(longest, int) and longest <= window)


def sharing_obstacle(keys: Keys, size: int) -> str | None:
    """Returns the reason for which so many ranks cannot share a model's rows; None if they can.

    Each of them attends with its part of the heads; heads of keys that are fewer are repeated.
    """
    if keys.get("vision_config"):
        return "sequences with images are not shared"
    text = text_keys(keys)
    heads = text.get("num_attention_heads", text.get("n_head"))
    if not isinstance(heads, int):
        return None
    if heads % size:
        return f"its {heads} attention heads cannot be dealt out to {size} ranks evenly"
    of_keys = text.get("num_key_value_heads")
    if isinstance(of_keys, int) and of_keys % size and size % of_keys:
        return f"its {of_keys} heads of keys and values and {size} ranks do not divide"
    return None


@dataclass(frozen=True, slots=True)
class HeadSettings:
    """The way in which log-probabilities are computed from the last hidden states."""

    is_chunked: bool = False
    """True if logits exist for a chunk of tokens at a time."""
    recomputes: bool = False
    """True if a chunk is computed again in the backward pass."""


def head_settings(trainer: TrainerConfig) -> HeadSettings:
    """Returns the head's settings; each key enables chunks, which `entropy_checkpointing` needs."""
    recomputes = trainer.use_fused_kernels or trainer.entropy_checkpointing
    return HeadSettings(trainer.entropy_from_logits_with_chunking or recomputes, recomputes)


def head_obstacle(keys: Keys) -> str | None:
    """Returns the reason for which a model's head cannot be computed in chunks; None if it can."""
    found = _changes_of_logits(text_keys(keys))
    return f"the model changes its logits after its head (`{found[0]}`)" if found else None


def changes_logits(text: Mapping[str, object]) -> bool:
    """Returns True if the keys of a language model change logits after the head."""
    return bool(_changes_of_logits(text))


def _changes_of_logits(text: Mapping[str, object]) -> list[str]:
    return [key for key in _SCALED_LOGITS if text.get(key) is not None]
