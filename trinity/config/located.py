"""Where in its file stands what a plan's mistakes speak of."""

import re
from collections.abc import Sequence

from trinity.config.source import Source

_STAGE = re.compile(r"^stage `(?P<name>[^`]+)`")
_KEY = re.compile(r"`(?P<key>[a-z_]+(\.\w+(\[\d+\])?)+)")


def located(mistakes: str, source: Source, stage_names: Sequence[str]) -> str:
    """Each line after `file:line: ` of the key that it names, or of the section around the key."""
    return "\n".join(_located(line, source, stage_names) for line in mistakes.splitlines())


def _located(sentence: str, source: Source, stage_names: Sequence[str]) -> str:
    named = _KEY.search(sentence)
    origin = named and _origin(named["key"], _prefix(sentence, stage_names), source)
    return f"{origin or source.path}: {sentence}"


def _prefix(sentence: str, stage_names: Sequence[str]) -> str:
    """What the keys of the sentence's stage begin with in the file."""
    stage = _STAGE.match(sentence)
    if stage is None or stage["name"] not in stage_names:
        return ""
    return f"stages[{stage_names.index(stage['name'])}]."


def _origin(key: str, prefix: str, source: Source) -> str | None:
    """The stage's own before the global one, a key before the section that it would stand in."""
    while key:
        for place in (f"{prefix}{key}", key):
            if origin := source.origin(place):
                return origin
        key = key.rpartition(".")[0]
    return None
