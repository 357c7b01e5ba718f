"""A configuration's text, with the line or the command line as the origin of each key."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic.fields import FieldInfo

from trinity.config.loading.keys import Location
from trinity.config.loading.yaml import key_lines
from trinity.config.schema.base import Section
from trinity.errors import UserError

COMMAND_LINE = "the command line"


_STAGE = re.compile(r"^stage `(?P<name>[^`]+)`")
_LIKE_A_KEY = re.compile(
    r"[~+]*(?P<key>[a-z_]+(\.[a-z_]+)+)(?<!\.yaml)(?<!\.yml)(\s*[:=].*)?|(?P<path>[a-z_]+(/[a-z_]+)+)=.*"
)
"""Words on the command line that are no file and mean a key, such as `buffer.batch_size: 4`."""
_KEY = re.compile(r"`(?P<key>[a-z_]+(\[\d+\])?(\.\w+(\[\d+\])?)+)")
_TOP_KEY = re.compile(r"`(?P<key>[a-z_]+): ")
Written = tuple[Location, type[Section], dict[str, Any]]
"""The location of a section, its type, and the written values."""


@dataclass(frozen=True, slots=True)
class ConfigSource:
    """The file that a configuration came from, used to locate its keys."""

    path: Path
    text: str
    lines: Mapping[str, int]
    """Dotted key to line."""
    overridden: frozenset[str] = frozenset()
    """Dotted keys that the command line gives."""
    moved: Mapping[str, str] = field(default_factory=dict)
    """Dotted key to the older name that it was given under."""

    @classmethod
    def read(cls, path: Path) -> "ConfigSource":
        """Reads the file; raises UserError if it cannot be read."""
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            reason = error.strerror or str(error)
            if (meant := _LIKE_A_KEY.fullmatch(str(path))) and not path.exists():
                key = meant["key"] or meant["path"].replace("/", ".")
                reason += f"; a key is set by `{key}=VALUE`"
            raise UserError(f"cannot read the configuration {path}: {reason}") from error
        except UnicodeDecodeError as error:
            line = error.object.count(b"\n", 0, error.start) + 1
            raise UserError(
                f"{path}:{line} is not UTF-8 text: save the file as UTF-8, or give a YAML file"
            ) from error
        return cls(path, text, key_lines(text))

    def as_written(self, key: str) -> str:
        """The key as the user wrote it."""
        for new, old in self.moved.items():
            if key == new or key.startswith((f"{new}.", f"{new}[")):
                return old + key.removeprefix(new)
        return key

    def origin(self, key: str) -> str | None:
        """`file:line` or the command line; None for a key that was not given."""
        written = self.as_written(key)
        if any(written == over or written.startswith(f"{over}.") for over in self.overridden):
            return COMMAND_LINE
        line = self.lines.get(written)
        return f"{self.path}:{line}" if line else None

    def line(self, key: str) -> int:
        """Line in the file; 0 for a key of the command line."""
        return 0 if self.origin(key) == COMMAND_LINE else self.lines.get(self.as_written(key), 0)

    def at(self, key: str) -> str:
        """`in file:line` or `on the command line`; in the file if the key is nowhere."""
        origin = self.origin(key)
        if any(over.startswith((f"{key}.", f"{key}[")) for over in self.overridden):
            origin = COMMAND_LINE  # an error of a section that is also in the file
        return f"on {origin}" if origin == COMMAND_LINE else f"in {origin or self.path}"


def add_locations(errors: str, source: ConfigSource, stage_names: Sequence[str]) -> str:
    """Prefixes each line with `file:line: ` of the key it names, or of the section around it."""
    return "\n".join(_located(line, source, stage_names) for line in errors.splitlines())


def _located(sentence: str, source: ConfigSource, stage_names: Sequence[str]) -> str:
    named = _KEY.search(sentence) or _TOP_KEY.search(sentence)
    origin = named and _origin(named["key"], _prefix(sentence, stage_names), source)
    return f"{origin or source.path}: {sentence}"


def _prefix(sentence: str, stage_names: Sequence[str]) -> str:
    """The prefix in the file of the keys of the sentence's stage."""
    stage = _STAGE.match(sentence)
    if stage is None or stage["name"] not in stage_names:
        return ""
    return f"stages[{stage_names.index(stage['name'])}]."


def _origin(key: str, prefix: str, source: ConfigSource) -> str | None:
    """Looks up the stage's own key before the global one, and a key before its section."""
    while key:
        for place in (f"{prefix}{key}", key):
            if origin := source.origin(place):
                return origin
        key = key.rpartition(".")[0]
    return None


def section_of(field_type: Any) -> type[Section] | None:
    """The section that a type is, or holds by name, in a list, or as an option."""
    if isinstance(field_type, type) and issubclass(field_type, Section):
        return field_type
    return next((found for part in get_args(field_type) if (found := section_of(part))), None)


def is_by_name(field: FieldInfo) -> bool:
    """True if a key holds sections under names that the user chooses."""
    return get_origin(field.annotation) is dict


@cache
def sections_below(section: type[Section]) -> dict[str, type[Section]]:
    """Key to section, for the keys that have one below them."""
    found = {name: section_of(field.annotation) for name, field in section.model_fields.items()}
    return {name: inner for name, inner in found.items() if inner is not None}


def section_at(location: Location, top: type[Section]) -> type[Section] | None:
    """The section that a location below `top` leads to."""
    section: type[Section] | None = top
    is_name = False
    for part in location:
        if is_name:
            is_name = False
        elif isinstance(part, str) and section is not None:
            field = section.model_fields.get(part)
            is_name = field is not None and is_by_name(field)
            section = sections_below(section).get(part)
    return section


def written_sections(tree: Any, section: type[Section], at: Location = ()) -> Iterator[Written]:
    """Every section of a tree as it was written, outer ones first."""
    if not isinstance(tree, dict):
        return
    yield at, section, tree
    for name, inner in sections_below(section).items():
        if name in tree:
            by_name = is_by_name(section.model_fields[name])
            for place, value in _parts(tree[name], (*at, name), by_name):
                yield from written_sections(value, inner, place)


def _parts(value: Any, at: Location, by_name: bool) -> Iterator[tuple[Location, Any]]:
    if isinstance(value, list):
        yield from (((*at, position), item) for position, item in enumerate(value))
    elif by_name and isinstance(value, dict):
        yield from (((*at, name), item) for name, item in value.items())
    else:
        yield at, value
