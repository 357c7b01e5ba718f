"""Expands `${NAME}` in all its forms."""

import re
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import NamedTuple

from trinity.verl.shell.variables import UNKNOWN, Field, Variables

_PARAMETER = re.compile(
    r"(?P<prefix>[#!]?)(?P<name>[A-Za-z_]\w*|[0-9]+|[@*#?$!-])"
    r"(?:\[(?P<subscript>[^\]]*)\])?"
    r"(?P<operator>:[-=+?]|[-=+?]|##?|%%?|//?|,,?|\^\^?|:)?(?P<rest>.*)",
    re.DOTALL,
)


class Parameter(NamedTuple):
    """The parts of the text in the braces."""

    prefix: str
    name: str
    subscript: str
    operator: str
    rest: str


def split_parameter(written: str) -> Parameter | None:
    """Splits a parameter into its parts; None if the text is not one."""
    found = _PARAMETER.fullmatch(written)
    if found is None:
        return None
    return Parameter(*(found[part] or "" for part in Parameter._fields))


def parameter_value(
    written: str,
    variables: Variables,
    piece: Field,
    *,
    expand: Callable[[str], str],
    unset_is_empty: bool,
) -> Field:
    """Expands `written`, the text within `piece`.

    An unset name becomes an interpolation of the environment, except in a condition.
    """
    parameter = split_parameter(written)
    if parameter is None or parameter.prefix == "!":
        variables.note(piece.line, f"`{piece.text}` is not understood, {UNKNOWN} stands for it")
        return Field(UNKNOWN, piece.line)
    held = variables.get(parameter.name)
    if parameter.prefix == "#":
        return Field(_length(parameter, held), piece.line)
    value = _chosen(held, parameter.subscript)
    if _uses_default(parameter.operator, value):
        return _default(parameter, variables, piece, expand)
    if parameter.operator in ("+", ":+"):
        return Field(expand(parameter.rest) if value is not None else "", piece.line)
    if held == ():
        return Field("", piece.line)
    if value is None:
        return Field(_unset(parameter.name, variables, piece, empty=unset_is_empty), piece.line)
    return Field(_changed(value.text, parameter, expand), value.line)


def _chosen(held: tuple[Field, ...] | None, index: str) -> Field | None:
    if not held:
        return None
    if index in ("@", "*"):
        return Field(" ".join(element.text for element in held), held[0].line)
    position = int(index) if index.isdigit() else 0
    return held[position] if position < len(held) else None


def _length(parameter: Parameter, held: tuple[Field, ...] | None) -> str:
    if parameter.subscript in ("@", "*"):
        return str(len(held or ()))
    value = _chosen(held, parameter.subscript)
    return str(len(value.text) if value else 0)


def _uses_default(operator: str, value: Field | None) -> bool:
    if operator in (":-", ":="):
        return value is None or not value.text
    return operator in ("-", "=") and value is None


def _default(
    parameter: Parameter, variables: Variables, piece: Field, expand: Callable[[str], str]
) -> Field:
    variables.defaulted.add(parameter.name)
    value = Field(expand(parameter.rest), piece.line)
    if parameter.operator.endswith("="):
        variables.put(parameter.name, (value,))
    return value


def _unset(name: str, variables: Variables, piece: Field, *, empty: bool) -> str:
    if name == "#":
        return "0"
    if name in ("@", "*") or empty:
        return ""
    if not name[0].isalpha() and name[0] != "_":
        variables.note(piece.line, f"`{piece.text}` is not given, {UNKNOWN} stands for it")
        return UNKNOWN
    return f"${{oc.env:{name}}}"


def _changed(text: str, parameter: Parameter, expand: Callable[[str], str]) -> str:
    match parameter.operator:
        case "," | ",,":
            return text.lower() if parameter.operator == ",," else text[:1].lower() + text[1:]
        case "^" | "^^":
            return text.upper() if parameter.operator == "^^" else text[:1].upper() + text[1:]
        case "#" | "##":
            return _without_prefix(text, expand(parameter.rest), longest=parameter.operator == "##")
        case "%" | "%%":
            return _without_suffix(text, expand(parameter.rest), longest=parameter.operator == "%%")
        case "/" | "//":
            old, _, new = parameter.rest.partition("/")
            return text.replace(expand(old), expand(new), 1 if parameter.operator == "/" else -1)
        case ":":
            start, _, length = parameter.rest.partition(":")
            return _slice(text, start.strip(), length.strip())
    return text


def _without_prefix(text: str, pattern: str, *, longest: bool) -> str:
    ends = range(len(text), -1, -1) if longest else range(len(text) + 1)
    return next((text[end:] for end in ends if fnmatchcase(text[:end], pattern)), text)


def _without_suffix(text: str, pattern: str, *, longest: bool) -> str:
    starts = range(len(text) + 1) if longest else range(len(text), -1, -1)
    return next((text[:start] for start in starts if fnmatchcase(text[start:], pattern)), text)


def _slice(text: str, start: str, length: str) -> str:
    if not start.isdigit():
        return text
    end = int(start) + int(length) if length.isdigit() else None
    return text[int(start) : end]
