"""Parses `key=value` as Hydra does: `+key`, `++key`, `~key`, lists, quotes, numbers."""

import re
from dataclasses import dataclass
from typing import Literal

from trinity.verl.json_value import JsonValue

_OVERRIDE = re.compile(
    r"(?P<sign>\+\+|\+|~)?(?P<key>[A-Za-z_][\w./@-]*)(?P<equals>=(?P<value>.*))?", re.S
)
_INTEGER = re.compile(r"[+-]?\d(_?\d)*")
_FLOAT = re.compile(r"[+-]?((\d(_?\d)*)?\.\d+|\d(_?\d)*\.?)([eE][+-]?\d+)?|[+-]?inf|nan")
_WORDS: dict[str, bool | None] = {"true": True, "false": False, "null": None}


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
    """Parses a value; what is not a list, mapping, number, quote, boolean or null is text."""
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
        """True if nothing is left."""
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
