"""Adds the place in the file to a plan's errors."""

import re
from collections.abc import Sequence

from trinity.config.source import Source

_STAGE = re.compile(r"^stage `(?P<name>[^`]+)`")
_KEY = re.compile(r"`(?P<key>[a-z_]+(\.\w+(\[\d+\])?)+)")


def located(mistakes: str, source: Source, stage_names: Sequence[str]) -> str:
    """Prefixes each line with `file:line: ` of the key it names, or of the section around it."""
    return "\n".join(_located(line, source, stage_names) for line in mistakes.splitlines())


def _located(sentence: str, source: Source, stage_names: Sequence[str]) -> str:
    named = _KEY.search(sentence)
    origin = named and _origin(named["key"], _prefix(sentence, stage_names), source)
    return f"{origin or source.path}: {sentence}"


def _prefix(sentence: str, stage_names: Sequence[str]) -> str:
    """The prefix in the file of the keys of the sentence's stage."""
    stage = _STAGE.match(sentence)
    if stage is None or stage["name"] not in stage_names:
        return ""
    return f"stages[{stage_names.index(stage['name'])}]."


def _origin(key: str, prefix: str, source: Source) -> str | None:
    """Looks up the stage's own key before the global one, and a key before its section."""
    while key:
        for place in (f"{prefix}{key}", key):
            if origin := source.origin(place):
                return origin
        key = key.rpartition(".")[0]
    return None
