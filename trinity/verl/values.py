"""Values of keys: Hydra's override grammar, and conversions between veRL's values and ours."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias, Union

import yaml

JsonValue: TypeAlias = Union[  # noqa: UP007  # a recursive alias must be quoted
    bool, int, float, str, list["JsonValue"], dict[str, "JsonValue"], None
]

_OVERRIDE = re.compile(
    r"(?P<sign>\+\+|\+|~)?(?P<key>[A-Za-z_][\w./@-]*)(?P<equals>=(?P<value>.*))?", re.S
)
_INTEGER = re.compile(r"[+-]?\d(_?\d)*")
_FLOAT = re.compile(r"[+-]?((\d(_?\d)*)?\.\d+|\d(_?\d)*\.?)([eE][+-]?\d+)?|[+-]?inf|nan")
_WORDS: dict[str, bool | None] = {"true": True, "false": False, "null": None}

_VARIABLE = re.compile(r"\$\{oc\.env:(\w+)(?:,([^}]*))?\}")
_SEGMENT = re.compile(r"[^A-Za-z0-9._-]+")
_LAYERS_OF_MEGATRON = {
    "linear_qkv": "q_proj,k_proj,v_proj",
    "linear_proj": "o_proj",
    "linear_fc1": "gate_proj,up_proj",
    "linear_fc2": "down_proj",
}
"""Megatron's names of layers, each with those of models in Hugging Face's layout."""


class FloatLoader(yaml.SafeLoader):
    """Loader that reads 1e-6 as a number, as Hydra does."""


FloatLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+"), list("-+0123456789")
)


def flat_values(tree: Mapping[str, JsonValue], above: str = "") -> Iterator[tuple[str, JsonValue]]:
    """Yields every key with its value, `null` included."""
    for name, value in tree.items():
        if isinstance(value, dict) and value:
            yield from flat_values(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


@dataclass(frozen=True, slots=True)
class Override:
    """One parsed override."""

    key: str
    value: JsonValue
    sign: Literal["", "+", "++", "~"]


def read_override(text: str) -> Override | None:
    """Parses an override; None if the text is not one."""
    found = _OVERRIDE.fullmatch(text)
    if found is None or (not found["equals"] and found["sign"] != "~"):
        return None
    sign: Literal["", "+", "++", "~"] = found["sign"] or ""  # type: ignore[assignment]
    return Override(found["key"], read_value(found["value"] or ""), sign)


def read_value(text: str) -> JsonValue:
    """Parses a list, mapping, number, quoted text, boolean or null; anything else is text."""
    reader = _Reader(text.strip())
    value = reader.value("")
    return value if reader.is_at_end else text.strip()


class _Reader:
    """Reads one value from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    @property
    def is_at_end(self) -> bool:
        """True at the end of the text."""
        return not self._text[self._at :].strip()

    def value(self, ends: str) -> JsonValue:
        """Reads up to one of the characters in `ends`, which is not consumed."""
        self._skip()
        match self._text[self._at : self._at + 1]:
            case "[":
                return self._list()
            case "{":
                return self._mapping()
            case "'" | '"':
                return self._quoted()
        return _typed(self._plain(ends))

    def _list(self) -> JsonValue:
        self._at += 1
        values: list[JsonValue] = []
        while not self._ends("]"):
            values.append(self.value(",]"))
            self._ends(",")
            if self.is_at_end:
                break
        return values

    def _mapping(self) -> JsonValue:
        self._at += 1
        values: dict[str, JsonValue] = {}
        while not self._ends("}"):
            key = self.value(":,}")
            values[str(key)] = self.value(",}") if self._ends(":") else None
            self._ends(",")
            if self.is_at_end:
                break
        return values

    def _quoted(self) -> str:
        quote, start = self._text[self._at], self._at + 1
        end = start
        while end < len(self._text) and self._text[end] != quote:
            end += 2 if self._text[end] == "\\" else 1
        self._at = end + 1
        return self._text[start:end].replace(f"\\{quote}", quote)

    def _plain(self, ends: str) -> str:
        start, depth = self._at, 0
        while self._at < len(self._text):
            sign = self._text[self._at]
            if depth == 0 and sign in ends:
                break
            depth += (sign in "{[(") - (sign in "}])")
            self._at += 1
        return self._text[start : self._at].strip()

    def _skip(self) -> None:
        while self._text[self._at : self._at + 1].isspace():
            self._at += 1

    def _ends(self, sign: str) -> bool:
        """Consumes `sign` if it comes next."""
        self._skip()
        if self._text[self._at : self._at + 1] != sign:
            return False
        self._at += 1
        return True


def _typed(text: str) -> JsonValue:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else text


def as_segment(value: JsonValue) -> JsonValue:
    """A name that may be part of a path; interpolations stay."""
    text = str(value)
    if "${" in text:
        return text
    return _SEGMENT.sub("-", text).strip("-._") or "unnamed"


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


def as_count(value: JsonValue, default: int) -> int:
    """Returns a positive integer, or the default for any other value."""
    is_count = isinstance(value, int) and not isinstance(value, bool) and value > 0
    return int(value) if is_count and isinstance(value, int) else default


def as_list(value: JsonValue) -> JsonValue:
    """Parses a list that was quoted as text."""
    return read_value(value) if isinstance(value, str) else value


def identity(value: JsonValue) -> JsonValue:
    """The value itself."""
    return value


def as_optimizer(value: JsonValue) -> JsonValue:
    """Converts PyTorch's class to the name here; others stay, and the check refuses them."""
    return {"adamw": "adam", "adam": "adam", "fusedadam": "adam", "sgd": "sgd"}.get(
        str(value).lower(), value
    )


def as_torch_optimizer(value: JsonValue) -> JsonValue:
    """Inverse of `as_optimizer`."""
    return {"adam": "AdamW", "sgd": "SGD"}.get(str(value).lower(), value)


def as_scheduler(value: JsonValue) -> JsonValue:
    """Converts a scheduler's name; most names are the same in lower case."""
    if not isinstance(value, str):
        return value
    return "WSD" if value.lower() == "wsd" else value.lower()


def as_target_modules(value: JsonValue) -> JsonValue:
    """Joins a list to one text with commas, in the names of Hugging Face's layout."""
    names = [str(item) for item in value] if isinstance(value, list) else [str(value)]
    return ",".join(_LAYERS_OF_MEGATRON.get(name, name) for name in names)


def shell_word(key: str, value: JsonValue) -> str:
    """`key=value`, quoted for the shell."""
    text = f"{key}={_hydra(value)}"
    if "${" in text:
        shell = _VARIABLE.sub(_as_variable, text.replace('"', "'"))
        return f'"{shell}"'
    return text if re.fullmatch(r"[\w./=:@%+,-]*", text) else "'" + text.replace("'", '"') + "'"


def _as_variable(found: re.Match[str]) -> str:
    return f"${found[1]}" if found[2] is None else f"${{{found[1]}:-{found[2]}}}"


def _hydra(value: JsonValue) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return str(value)
        case list():
            return "[" + ",".join(_quoted(inner) for inner in value) + "]"
        case dict():
            return "{" + ",".join(f"{name}:{_quoted(v)}" for name, v in value.items()) + "}"
    return str(value)


def _quoted(value: JsonValue) -> str:
    return f"'{value}'" if isinstance(value, str) else _hydra(value)
