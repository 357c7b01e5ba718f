"""Position embeddings: one function makes the parameters for the engine and the trainer."""

from collections.abc import Mapping

from trinity.config.error_collector import did_you_mean
from trinity.config.plan.arithmetic import Keys, text_keys
from trinity.config.schema.model import ModelConfig
from trinity.errors import UserError
from trinity.runtime.json_values import JsonValue

ROPE_KEYS = frozenset({"rope_theta", "rope_scaling", "rope_parameters"})
"""Keys of a config.json, in the forms of several releases of transformers."""
DEFAULT_THETA = 10_000.0
"""The base of models whose config.json has none."""
_SCALED_FROM = frozenset({"yarn", "longrope", "llama3"})
"""Types that must know the length that the model was made for."""


_FACTORS: Mapping[str, tuple[str, ...]] = {
    "linear": ("factor",),
    "dynamic": ("factor",),
    "yarn": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "longrope": ("short_factor", "long_factor"),
}
"""Types that scale, with the keys that they cannot do without."""
_TYPES = ("default", "proportional", *_FACTORS)


def changes_rope(model: ModelConfig) -> bool:
    """Returns True if the user gives position embeddings other than the model's own."""
    return bool(model.rope_scaling) or model.rope_theta is not None


def rope_keys(keys: Keys, model: ModelConfig) -> dict[str, JsonValue]:
    """Returns the keys of a config.json that hold the changed position embeddings.

    Raises: UserError if they cannot be changed so.
    """
    found: dict[str, JsonValue] = {
        "rope_parameters": rope_parameters(keys, model.rope_scaling, model.rope_theta)
    }
    return {"text_config": found} if isinstance(keys.get("text_config"), dict) else found


def with_rope(keys: Keys, model: ModelConfig) -> dict[str, JsonValue]:
    """Returns a whole config.json with the changed position embeddings, if the user has any."""
    if not changes_rope(model):
        return dict(keys)
    inner = keys.get("text_config")
    if isinstance(inner, dict):
        return {**keys, "text_config": {**inner, **rope_keys(inner, model)}}
    return {**keys, **rope_keys(keys, model)}


def rope_parameters(
    keys: Keys, scaling: Mapping[str, JsonValue], theta: float | None
) -> dict[str, JsonValue]:
    """Returns `rope_parameters` for transformers 5: the model's, updated with the user's.

    Older keys have no effect there: a separate `rope_theta` is ignored, and a `rope_scaling`
    without a base is an error. A new type keeps only the base of the old one.

    Raises: UserError if the model has other embeddings for each kind of layer, or for a type that
        is unknown, does not scale or lacks a factor.
    """
    own = _own_parameters(text_keys(keys))
    if any(isinstance(value, dict) for value in own.values()):
        raise UserError(
            "`model.rope_scaling` and `model.rope_theta` cannot be laid over this model, which has "
            "position embeddings for each kind of layer: change `rope_parameters` in a copy of its "
            "config.json"
        )
    given = _with_type(scaling)
    merged = {**own, **given}
    if given.get("rope_type", own["rope_type"]) != own["rope_type"]:
        merged = {"rope_theta": own["rope_theta"], **given}
    if theta is not None:
        merged["rope_theta"] = theta
    if scaling:
        _check_scaling(merged, own["rope_type"])
    longest = text_keys(keys).get("max_position_embeddings")
    if merged["rope_type"] in _SCALED_FROM and longest is not None:
        merged.setdefault("original_max_position_embeddings", longest)
    return merged


def _check_scaling(merged: Mapping[str, JsonValue], own_type: JsonValue) -> None:
    kind = merged["rope_type"]
    if kind != own_type and kind not in _TYPES:
        near = did_you_mean(str(kind), _TYPES)
        raise UserError(f"`model.rope_scaling.rope_type: {kind}` is no type of transformers{near}")
    if kind == "default" and "factor" in merged:
        raise UserError(
            "`model.rope_scaling` has a factor, and `rope_type: default`, which is the model's "
            f"own, scales nothing: give a `rope_type`, one of {', '.join(_FACTORS)}"
        )
    for name in _FACTORS.get(str(kind), ()):
        if name not in merged:
            raise UserError(f"`model.rope_scaling` lacks `{name}`, which `rope_type: {kind}` needs")
        _check_factor(name, merged[name])


def _check_factor(name: str, value: JsonValue) -> None:
    if name in ("short_factor", "long_factor"):
        is_right, wanted = isinstance(value, list), "a list of numbers"
    else:
        least = 1 if name == "factor" else 0
        is_right = isinstance(value, int | float) and value is not True and value >= least
        wanted = f"a number of {least} or more"
    if not is_right:
        raise UserError(f"`model.rope_scaling.{name}: {value}` must be {wanted}")


def _own_parameters(keys: Keys) -> dict[str, JsonValue]:
    newest, older = keys.get("rope_parameters"), keys.get("rope_scaling")
    found = newest if isinstance(newest, dict) else older if isinstance(older, dict) else {}
    theta = keys.get("rope_theta", DEFAULT_THETA)
    return {"rope_type": "default", "rope_theta": theta, **_with_type(found)}


def _with_type(parameters: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Returns them with the type under its newer name."""
    rest = {name: value for name, value in parameters.items() if name != "type"}
    return {"rope_type": parameters["type"], **rest} if "type" in parameters else rest
