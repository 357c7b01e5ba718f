"""Where in its file stands what a plan's mistakes speak of."""

import re
from collections.abc import Sequence

from trinity.config.complaints import Source

_STAGE = re.compile(r"^stage `(?P<name>[^`]+)`: ")
_KEY = re.compile(r"`(?P<key>[a-z_]+(\.\w+)+)")


def located(mistakes: str, source: Source, stage_names: Sequence[str]) -> str:
    """Each line after `file:line: ` of the key that it names, or of the section around the key."""
    return "\n".join(_located(line, source, stage_names) for line in mistakes.splitlines())


def _located(sentence: str, source: Source, stage_names: Sequence[str]) -> str:
    named = _KEY.search(sentence)
    line = _line_of(named["key"], _prefix(sentence, stage_names), source) if named else None
    place = f"{source.path}:{line}" if line else str(source.path)
    return f"{place}: {sentence}"


def _prefix(sentence: str, stage_names: Sequence[str]) -> str:
    """What the keys of the sentence's stage begin with in the file."""
    stage = _STAGE.match(sentence)
    if stage is None or stage["name"] not in stage_names:
        return ""
    return f"stages[{stage_names.index(stage['name'])}]."


def _line_of(key: str, prefix: str, source: Source) -> int | None:
    """The stage's own before the global one, a key before the section that it would stand in."""
    while key:
        for place in (f"{prefix}{key}", key):
            if place in source.lines:
                return source.lines[place]
        key = key.rpartition(".")[0]
    return None
