"""Reads a file and command-line overrides into a configuration with errors and notices.

An error is a sentence that names the key, its line and the fix.
"""

import copy
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import JsonValue, ValidationError
from pydantic_core import ErrorDetails

from trinity.config.error_collector import closest_match
from trinity.config.loading import keys
from trinity.config.loading.keys import Location, existing_prefix, to_dotted
from trinity.config.loading.migrate import (
    ConfigNotice,
    KeyMigration,
    load_verl_files,
    strip_planned_values,
    strip_unread_keys,
)
from trinity.config.loading.source import COMMAND_LINE, ConfigSource, section_at, sections_below
from trinity.config.loading.tree import read_tree, unquoted_bounds
from trinity.config.loading.yaml_errors import unusual_characters
from trinity.config.schema.base import KeyStatus, Section, redact_secrets, status_of
from trinity.config.schema.experiment import Config
from trinity.errors import UserError

MAX_DROPS = 3
ALMOST = 0.85
"""Likeness of a key of another section that was probably meant: `total_step` for `total_steps`."""
OF_VERL: tuple[Location, ...] = (("actor_rollout_ref",), ("critic",))
"""Sections that guides print on their own."""
_PAIR = re.compile(r"[A-Za-z_]\w*:\S")


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedConfig:
    """A file that was read, with its errors and notices."""

    source: ConfigSource
    written: Mapping[str, JsonValue]
    """The user's values, interpolated, under the current names."""
    config: Config | None
    """Only keys that act, without wrong ones; None if the wrong ones cannot be separated."""
    errors: tuple[str, ...]
    notices: tuple[ConfigNotice, ...]

    @property
    def planned(self) -> tuple[ConfigNotice, ...]:
        """Notices because of which a run is refused."""
        return tuple(notice for notice in self.notices if notice.status is KeyStatus.PLANNED)


def read_config(path: Path, overrides: Mapping[str, JsonValue] | None = None) -> ParsedConfig:
    """Reads a file; raises UserError only if it is not a configuration at all."""
    source = replace(ConfigSource.read(path), overridden=frozenset(overrides or {}))
    tree, unfilled = read_tree(source, overrides or {})
    source, unread = load_verl_files(tree, source)
    migration = KeyMigration(tree, source)
    migration.apply()
    source = replace(source, moved=migration.moved)
    notices = [*migration.notices, *strip_planned_values(tree, source)]
    errors = [*unfilled, *unread, *migration.errors, *unquoted_bounds(source)]
    written = copy.deepcopy(tree)
    config, wrong = _validated(tree, source)
    if config is not None:
        notices += strip_unread_keys(tree, config, source)
        config = Config.model_validate(tree)
    return ParsedConfig(
        source=source,
        written=written,
        config=config,
        errors=(*errors, *wrong),
        notices=tuple(sorted(notices, key=lambda notice: notice.line)),
    )


def _validated(tree: dict[str, Any], source: ConfigSource) -> tuple[Config | None, Sequence[str]]:
    """Validates the tree, drops wrong keys from it, and returns the rest with the errors."""
    try:
        return Config.model_validate(tree), ()
    except ValidationError as error:
        errors = tuple(validation_errors(error, tree, source))
        _drop_wrong(tree, error)
    for _ in range(MAX_DROPS):
        try:
            return Config.model_validate(tree), errors
        except ValidationError as error:  # the rest is invalid without dropped keys
            _drop_wrong(tree, error)
    return None, errors


def _drop_wrong(tree: dict[str, Any], error: ValidationError) -> None:
    """Drops wrong keys, and of lists wrong items with those behind them: places stay the same."""
    found = [details["loc"] for details in error.errors(include_url=False)]
    wrong = [keys.existing_prefix(tree, at) for at in found if not _name_stage(tree, at)]
    for location in wrong:
        keys.drop(tree, location)
    for location in wrong:
        keys.cut_list(tree, location)


def _name_stage(tree: dict[str, Any], at: keys.Location) -> bool:
    """Gives a stage whose name is missing or wrong one of its place, and keeps the rest of it."""
    match at:
        case ("stages", int() as place, "stage_name") if keys.has(tree, at[:2]):
            keys.put(tree, at, f"stage-{place + 1}")
            return True
    return False


def load_config(path: str | Path, overrides: Mapping[str, JsonValue] | None = None) -> Config:
    """Returns the file's interpolated configuration; `overrides` go on top, by dotted key.

    load_config("gsm8k.yaml", {"buffer.total_steps": 10})

    Raises: UserError with a sentence for each error, or one for all planned keys.
    """
    return require_runnable(read_config(Path(path), overrides))


def require_runnable(reading: ParsedConfig) -> Config:
    """Returns the configuration if it has no errors and uses no planned features."""
    if reading.errors:
        raise UserError("\n".join(reading.errors))
    assert reading.config is not None
    if reading.planned:
        asked = ", ".join(
            f"{notice.subject} {notice.place} ({notice.text})" for notice in reading.planned
        )
        raise UserError(
            f"{asked} {'does' if len(reading.planned) == 1 else 'do'} not act yet: "
            f"remove, or see `trinity config check {reading.source.path}`"
        )
    return reading.config


def similar_key(section: type[Section], prefix: str, name: str) -> str | None:
    """The valid key that was probably meant: one like it here, or the same name elsewhere."""
    elsewhere = _elsewhere(name)
    near = closest_match(name, _acting(section))
    if near is None and elsewhere is None:
        near = closest_match(name, (*section.model_fields, *section.old_names))
    if near is not None:
        return f"{prefix}.{near}" if prefix else near
    return elsewhere


def _elsewhere(name: str) -> str | None:
    """The first key of any section with this name, or with almost this name."""
    keys_by_name = {key.rpartition(".")[2]: key for key in reversed(list(_keys(Config, "")))}
    almost = get_close_matches(name, keys_by_name, n=1, cutoff=ALMOST)
    return keys_by_name[almost[0]] if almost else None


def _acting(section: type[Section]) -> list[str]:
    fields = section.model_fields.items()
    return [name for name, field in fields if status_of(field) is KeyStatus.ACTS]


def _keys(section: type[Section], prefix: str) -> Iterator[str]:
    below = sections_below(section)
    for name in _acting(section):
        if name == "stages":
            continue
        yield prefix + name
        if name in below:
            yield from _keys(below[name], f"{prefix}{name}.")


def validation_errors(error: ValidationError, tree: Any, source: ConfigSource) -> Iterator[str]:
    """Yields a sentence for each error; a key of several types gets only one."""
    found: dict[Location, list[ErrorDetails]] = {}
    for details in error.errors(include_url=False):
        is_missing = details["type"] == "missing"
        place = details["loc"] if is_missing else existing_prefix(tree, details["loc"])
        found.setdefault(place, []).append(details)
    for location, errors in found.items():
        yield _error_message(location, errors, source)


def _error_message(location: Location, errors: Sequence[ErrorDetails], source: ConfigSource) -> str:
    key, details = to_dotted(location), errors[0]
    where = source.at(key)
    match details["type"]:
        case "extra_forbidden":
            return _unknown_key(location, where)
        case "invalid_key":
            section = to_dotted(details["loc"][:-1])
            within = f"of `{section}` {source.at(section)}" if section else where
            return f"unknown key `{_as_in_yaml(details['input'])}` {within}: remove it"
        case "missing":
            return f"`{key}` is missing {_at_nearest(location, source)}: give it"
    if details["loc"][-1:] == ("[key]",):
        section = to_dotted(details["loc"][:-2])
        where = source.at(section)
        return f"the key `{details['input']}` of `{section}` {where} is not text: put it in quotes"
    demand = " or ".join(dict.fromkeys(_requirement(error) for error in errors)).replace(
        " or must be", " or"
    )
    value = _truncated_repr(redact_secrets(key, details["input"]))
    return f"`{source.as_written(key)}` {where} {demand}, not {value}"


def _at_nearest(location: Location, source: ConfigSource) -> str:
    """The place of the innermost section around a key that was not given."""
    while location := location[:-1]:
        if (origin := source.origin(to_dotted(location))) is not None:
            return f"on {origin}" if origin == COMMAND_LINE else f"in {origin}"
    return f"in {source.path}"


def _unknown_key(location: Location, where: str) -> str:
    key, name = to_dotted(location), str(location[-1])
    if location in OF_VERL:
        return (
            f"unknown key `{key}` {where}: it is a section of veRL, which belongs below "
            "`trainer.trainer_config`, or into a file that `trainer.trainer_config_path` names"
        )
    valid = section_at(location[:-1], Config)
    similar = similar_key(valid, to_dotted(location[:-1]), name) if valid else None
    advice = f"did you mean `{similar}`?" if similar else "remove it"
    return f"unknown key `{key}` {where}{unusual_characters(name)}: {advice}"


def _requirement(details: ErrorDetails) -> str:
    match details["type"]:
        case "model_type" | "model_attributes_type" | "dict_type":
            return "must be a section of keys" + _missing_space(details["input"])
        case "tuple_type" | "list_type":
            return "must be a list" + _numbered(details["input"])
        case "int_from_float":
            return "must be a whole number"
        case "string_type":
            return "must be a text (numbers in quotes)"
        case "string_pattern_mismatch":
            return _allowed_characters(str(details["ctx"]["pattern"]))
        case "bool_parsing" | "bool_type":
            return "must be true or false"
        case "value_error":
            return details["msg"].removeprefix("Value error, ")
    demand = re.sub(r"^\w+ should (be|have)", r"must \1", details["msg"])
    return demand.split(", unable to parse")[0]


def _allowed_characters(pattern: str) -> str:
    """The patterns of names, in words."""
    signs = "letters, digits, `.`, `_` and `-`" if "._-" in pattern else "letters, digits, `_`, `-`"
    if "_.-" in pattern:
        return "must be 1 to 64 letters, digits, `.`, `_` and `-`"
    first = ", a letter or digit first" if "[A-Za-z0-9][" in pattern else ""
    parts = ", in up to three parts with `/` between them" if "(/" in pattern else ""
    return f"must be {signs}{first}{parts}"


def _missing_space(value: object) -> str:
    """Advice on `key:value`, which YAML takes for one word."""
    is_pair = isinstance(value, str) and _PAIR.match(value)
    return " (write a space behind the colon)" if is_pair else ""


def _numbered(value: object) -> str:
    """Advice on an override with the number of an item that the file does not have."""
    is_number = isinstance(value, dict) and value and all(str(name).isdecimal() for name in value)
    return " (an item is set by its number if the file has the list)" if is_number else ""


def _as_in_yaml(value: object) -> object:
    return json.dumps(value) if value is None or isinstance(value, bool) else value


def _truncated_repr(value: object) -> str:
    if value is None or isinstance(value, bool):
        return str(_as_in_yaml(value))
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
