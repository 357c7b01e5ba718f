"""How single values are converted."""

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
    """-1 of veRL's is 0 here."""
    return 0 if isinstance(value, int) and value < 0 else value


def zero_is_never(value: JsonValue) -> JsonValue:
    """The way back."""
    return -1 if value == 0 else value


def as_top_k(value: JsonValue) -> JsonValue:
    """Both 0 and -1 are off."""
    return -1 if value == 0 else value


def is_above_one(value: JsonValue) -> JsonValue:
    """A size as a switch."""
    return isinstance(value, int) and value > 1


def is_not_disabled(value: JsonValue) -> JsonValue:
    """`trainer.resume_mode` as a switch."""
    return value != "disable"


def as_resume_mode(value: JsonValue) -> JsonValue:
    """The way back."""
    return "auto" if value else "disable"


def as_list(value: JsonValue) -> JsonValue:
    """A list that was quoted as a text."""
    return read_value(value) if isinstance(value, str) else value


def same(value: JsonValue) -> JsonValue:
    """The value itself."""
    return value


def as_optimizer(value: JsonValue) -> JsonValue:
    """PyTorch's class by the name here; others stay what they are, which the check refuses."""
    return {"adamw": "adam", "adam": "adam", "sgd": "sgd"}.get(str(value).lower(), value)


def as_torch_optimizer(value: JsonValue) -> JsonValue:
    """The way back."""
    return {"adam": "AdamW", "sgd": "SGD"}.get(str(value).lower(), value)


def as_scheduler(value: JsonValue) -> JsonValue:
    """`constant` and `cosine` are called alike."""
    if not isinstance(value, str):
        return value
    return "WSD" if value.lower() == "wsd" else value.lower()


def as_target_modules(value: JsonValue) -> JsonValue:
    """A list as one text with commas."""
    return ",".join(str(one) for one in value) if isinstance(value, list) else value
