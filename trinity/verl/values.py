"""Conversions of single values."""

import re

from trinity.verl.json_value import JsonValue
from trinity.verl.override_grammar import read_value

_SEGMENT = re.compile(r"[^A-Za-z0-9._-]+")


def as_segment(value: JsonValue) -> JsonValue:
    """A name that may be part of a path; interpolations stay."""
    text = str(value)
    if "${" in text:
        return text
    return _SEGMENT.sub("-", text).strip("-._") or "unnamed"


def never_is_zero(value: JsonValue) -> JsonValue:
    """Converts veRL's -1 to 0."""
    return 0 if isinstance(value, int) and value < 0 else value


def zero_is_never(value: JsonValue) -> JsonValue:
    """Inverse of `never_is_zero`."""
    return -1 if value == 0 else value


def as_top_k(value: JsonValue) -> JsonValue:
    """Converts 0 to -1, as both are off."""
    return -1 if value == 0 else value


def is_above_one(value: JsonValue) -> JsonValue:
    """Converts a size to a switch."""
    return isinstance(value, int) and value > 1


def is_not_disabled(value: JsonValue) -> JsonValue:
    """Converts `trainer.resume_mode` to a switch."""
    return value != "disable"


def as_resume_mode(value: JsonValue) -> JsonValue:
    """Inverse of `is_not_disabled`."""
    return "auto" if value else "disable"


def as_list(value: JsonValue) -> JsonValue:
    """Parses a list that was quoted as text."""
    return read_value(value) if isinstance(value, str) else value


def same(value: JsonValue) -> JsonValue:
    """The value itself."""
    return value


def as_optimizer(value: JsonValue) -> JsonValue:
    """Converts PyTorch's class to the name here; others stay, and the check refuses them."""
    return {"adamw": "adam", "adam": "adam", "sgd": "sgd"}.get(str(value).lower(), value)


def as_torch_optimizer(value: JsonValue) -> JsonValue:
    """Inverse of `as_optimizer`."""
    return {"adam": "AdamW", "sgd": "SGD"}.get(str(value).lower(), value)


def as_scheduler(value: JsonValue) -> JsonValue:
    """Converts a scheduler's name; most names are the same in lower case."""
    if not isinstance(value, str):
        return value
    return "WSD" if value.lower() == "wsd" else value.lower()


def as_target_modules(value: JsonValue) -> JsonValue:
    """Joins a list to one text with commas."""
    return ",".join(str(item) for item in value) if isinstance(value, list) else value
