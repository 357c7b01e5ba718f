"""Turns errors of the YAML reader into sentences that name the line and what to do there."""

import re
import unicodedata

import yaml
from yaml.reader import Reader

_NEIGHBOURS = "indent the line like its neighbours, and close each bracket and quote once"
REASONS: tuple[tuple[str, str], ...] = (
    (
        "mapping values are not allowed",
        "write one `key: value` a line, indent it like its neighbours, and put a text with `: ` in "
        "it in quotes",
    ),
    ("did not find expected key", _NEIGHBOURS),
    ("expected <block end>", _NEIGHBOURS),
    ("expected ',' or", "close the bracket, and separate what is in it with commas"),
    ("could not find expected ':'", "write `key: value`"),
    ("found unknown escape character", "write `\\\\` for a backslash, or use single quotes"),
    ("could not determine a constructor", "leave the tag out"),
    ("found unhashable key", "a key is one word; put a text with braces or brackets in quotes"),
    ("found unexpected end of stream", "close the quote"),
    ("node content", "close the bracket, or write what is missing in it"),
)
"""Part of the text of either reader, in C or in Python, and what to do."""
_TAB = re.compile(r" *\t")
_ALIAS = re.compile(r"[*&][^\s,\]}]*")


def yaml_error_sentence(error: yaml.YAMLError, path: object, text: str) -> str:
    """Returns `file:line is not valid YAML: ` with the reason and what to do."""
    if (unprintable := Reader.NON_PRINTABLE.search(text)) is not None:
        line = text.count("\n", 0, unprintable.start()) + 1
        sign = f"U+{ord(unprintable[0]):04X}"
        return f"{path}:{line} is not valid YAML: it holds the control character {sign}: remove it"
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return f"{path} is not valid YAML: {' '.join(str(error).split())}"
    line = error.problem_mark.line + 1
    return f"{path}:{line} is not valid YAML: {_own_reason(error, text) or _readers_reason(error)}"


def _own_reason(error: yaml.MarkedYAMLError, text: str) -> str | None:
    """Returns a clearer error than the parser's if the text shows the cause, else None."""
    mark, problem = error.problem_mark, error.problem or ""
    lines = text.splitlines()
    if mark is None or mark.line >= len(lines):
        return None
    line = lines[mark.line]
    if "cannot start any token" in problem:
        if _TAB.match(line):
            return "the line is indented by a tab: indent it by spaces"
        return f"no value begins with `{line[mark.column : mark.column + 1]}`: put it in quotes"
    if "undefined alias" in problem or "expected alphabetic or numeric" in problem:
        begin = (error.context_mark or mark).column
        word = _ALIAS.match(line, begin) or _ALIAS.match(line, mark.column)
        name = f"`{word[0]}`" if word else "the alias"
        return f"{name} refers to no `&name` above it: put a text that begins so in quotes"
    if "found another document" in problem:
        return "a second document begins here: leave `---` out, or put it in a separate file"
    return None


def _readers_reason(error: yaml.MarkedYAMLError) -> str:
    what = ", ".join(part for part in (error.context, error.problem) if part)
    begun, mark = error.context_mark, error.problem_mark
    if begun is not None and mark is not None and begun.line != mark.line:
        what += f" (it begins in line {begun.line + 1})"
    advice = next((advice for part, advice in REASONS if part in (error.problem or "")), None)
    return f"{what}: {advice}" if advice else what


def unusual_characters(key: str) -> str:
    """Returns a clause that names the non-ASCII characters of a key, or an empty text."""
    found = dict.fromkeys(sign for sign in key if not sign.isascii())
    named = [
        f"U+{ord(sign):04X} ({unicodedata.name(sign, 'a character without a name').lower()})"
        for sign in found
    ]
    return f", in which {' and '.join(named)} stands" if named else ""
