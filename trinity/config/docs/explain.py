"""Explains single keys, and makes the JSON Schema of a file."""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from trinity.config.docs.catalog import ConfigKey, all_keys, field_doc
from trinity.config.error_collector import closest_match
from trinity.config.key_modes import ALL, modes_of
from trinity.config.loading.keys import documented_key, parse_key
from trinity.config.loading.source import sections_below
from trinity.config.loading.verl_keys import (
    NOT_PASSED,
    PREFIX,
    SECTIONS,
    DefaultBehavior,
    key_treatment,
)
from trinity.config.schema.base import (
    KeyStatus,
    PlannedKey,
    RenamedKey,
    Section,
    choices_of,
    format_value,
    is_container,
    literals,
    mark_of,
    status_of,
)
from trinity.config.schema.experiment import Config
from trinity.errors import UserError

READERS = Path(__file__).with_name("readers.json")
MAX_EXPLAINED_KEYS = 12
MAX_SIMILAR = 3

Line = tuple[str, str]

VERL_SECTION = "trainer.trainer_config"
WRITTEN = "a value of your own"
"""Stands for a value that is not veRL's default."""

INTERPOLATION = {"type": "string", "pattern": r"\$\{.+\}"}
"""An expression that OmegaConf replaces by a value."""


def find_keys(asked: str) -> tuple[ConfigKey, ...]:
    """Returns the key of this path, or all keys that end with it.

    Raises: UserError naming the nearest key if no key matches.
    """
    wanted = documented_key(parse_key(asked)) or asked
    keys = {key.plain_path: key for key in all_keys()}
    if wanted in keys:
        return (keys[wanted],)
    ending = tuple(key for path, key in keys.items() if path.endswith(f".{wanted}"))
    if ending:
        return tuple(sorted(ending, key=lambda key: key.status is not KeyStatus.ACTS))
    if (newer := _below_newer_name(wanted, keys)) is not None:
        return find_keys(newer)
    if wanted != wanted.lower():
        return find_keys(wanted.lower())
    near = ", ".join(f"`{key}`" for key in _similar_keys(wanted, keys))
    advice = f": did you mean {near}?" if near else ": `trinity config schema` has all of them"
    raise UserError(f"there is no key `{asked}`{advice}")


def _similar_keys(wanted: str, keys: Mapping[str, ConfigKey]) -> Sequence[str]:
    """Returns keys that are explained in these words, or the one that is written most alike."""
    words = wanted.replace("_", " ")
    acting = (key for key in keys.values() if key.status is KeyStatus.ACTS)
    told = [key.plain_path for key in acting if words and words in key.meaning.lower()]
    if told:
        return told[:MAX_SIMILAR]
    near = closest_match(wanted, keys) or closest_match(
        wanted, {path.split(".")[-1] for path in keys}
    )
    return [near] if near else []


def _below_newer_name(wanted: str, keys: Mapping[str, ConfigKey]) -> str | None:
    """Returns a key below the newer name of a section that is written with its older one."""
    parts = wanted.split(".")
    for end in range(len(parts) - 1, 0, -1):
        above = keys.get(".".join(parts[:end]))
        if above is not None and above.status is KeyStatus.RENAMED:
            return ".".join((above.reason, *parts[end:]))
    return None


def explain_verl_key(asked: str) -> tuple[str, str | None] | None:
    """Says what becomes of a key below `trainer.trainer_config`, and which key has its value.

    explain_verl_key("actor_rollout_ref.actor.grad_clip")
    # ("a key of veRL; its value is used as `trainer.grad_clip`", "trainer.grad_clip")

    None for other keys.
    """
    key = asked.removeprefix(f"{VERL_SECTION}.")
    if key == PREFIX:
        return f"a section of veRL below `{VERL_SECTION}`: ask for one of its keys", None
    if key == asked and not key.startswith(f"{PREFIX}."):
        return None
    plain = key.removeprefix(f"{PREFIX}.")
    free = next((section for section in SECTIONS if plain.startswith(f"{section}.")), None)
    found = key_treatment(free or plain, WRITTEN)
    if isinstance(found, RenamedKey):
        ours = found.to.removeprefix("/")
        return f"a key of veRL; its value is used as `{ours}`", ours
    if isinstance(found, PlannedKey) and found.reason == NOT_PASSED:
        return None
    assert not isinstance(found, DefaultBehavior), "the value is not veRL's"
    return f"a key of veRL that does not act here: {found.reason}", None


def explain_key_lines(key: ConfigKey, in_verl: Sequence[str] = ()) -> Iterator[Line]:
    """Yields a label and its text for each fact about the key; `in_verl` has veRL's names."""
    if key.status is KeyStatus.RENAMED:
        yield "renamed", f"it is called `{key.reason}` here, where its value is used"
        return
    yield "", key.meaning
    yield "type", key.type
    if key.is_section:
        yield "keys", ", ".join(_names_below(key))
    else:
        yield "default", default_of(key)
    for value, name in key.other_values.items():
        yield "also", f"`{value}` for `{name}`"
    for value, what in key.planned_values.items():
        yield "planned", f"`{value}`: {what}"
    yield "status", f"{key.status}: {key.reason}" if key.reason else str(key.status)
    if key.status is KeyStatus.ACTS:
        yield "acts in", modes_in_words(modes_of(key.plain_path))
    if readers := readers_of(key):
        yield "read by", ", ".join(readers)
    if in_verl:
        yield "in verl", ", ".join(f"`{name}`" for name in in_verl)


def _names_below(section: ConfigKey) -> Iterator[str]:
    """Yields the names of a section's own keys that act."""
    for key in all_keys():
        above, _, name = key.plain_path.rpartition(".")
        if above == section.plain_path and key.status is KeyStatus.ACTS:
            yield name


def modes_in_words(modes: Sequence[str]) -> str:
    """Names modes, the missing ones where these are few."""
    if not modes:
        return "no mode"
    left = [mode for mode in ALL if mode not in modes]
    if not left:
        return "every mode"
    return ", ".join(modes) if len(left) > 1 else f"every mode but {left[0]}"


def default_of(key: ConfigKey) -> str:
    """The default on one line, with secrets hidden."""
    return "none: it must be given" if key.is_required else format_value(key.path, key.default)


def readers_of(key: ConfigKey) -> list[str]:
    """Parts of a run that read the key, as recorded: see tests/support/config_reads."""
    for section in key.section.__mro__:
        if found := _readers().get(f"{section.__name__}.{key.name}"):
            return found
    return []


@cache
def _readers() -> dict[str, list[str]]:
    if not READERS.exists():
        return {}
    read: dict[str, list[str]] = json.loads(READERS.read_text(encoding="utf-8"))
    return read


def json_schema() -> dict[str, Any]:
    """The schema of a file."""
    schema = Config.model_json_schema()
    schema |= {"$schema": "http://json-schema.org/draft-07/schema#", "title": "trinity"}
    definitions = schema["$defs"]
    sections: set[type[Section]] = {Config, *_sections(Config)}
    for section in sections:
        described = schema if section is Config else definitions.get(section.__name__)
        if described is not None:
            _describe(described, section)
    return schema


def _sections(section: type[Section]) -> Iterator[type[Section]]:
    for inner in sections_below(section).values():
        yield inner
        yield from _sections(inner)


def _describe(schema: dict[str, Any], section: type[Section]) -> None:
    properties = schema.setdefault("properties", {})
    for name, field in section.model_fields.items():
        properties[name] = _property(properties[name], section, name, field)
    for name, renamed in section.old_names.items():
        if "." in name:
            continue  # sections of arguments have no properties
        text = f"Called `{renamed.to.removeprefix('/')}` here."
        properties[name] = {"description": text, "deprecated": True}


def _property(
    schema: dict[str, Any], section: type[Section], name: str, field: FieldInfo
) -> dict[str, Any]:
    mark, status = mark_of(field), status_of(field)
    text = field_doc(section, name)
    default = schema.pop("default", None)
    schema.pop("title", None)
    described: dict[str, Any] = {"description": text}
    if mark is not None:
        described["description"] = f"{text} {status.capitalize()}: {mark.reason}."
    if status is KeyStatus.NO_EFFECT:
        described["deprecated"] = True
    if default is not None:
        described["default"] = default
    values = [*literals(field.annotation)]
    if values:
        choices = choices_of(field)
        known = [*values, *choices.aliases, *choices.planned, *choices.replaced]
        escaped = (value.replace("+", r"\+").replace(".", r"\.") for value in known)
        folded = {"type": "string", "pattern": f"^(?i:{'|'.join(escaped)})$"}
        return {**described, "anyOf": [{"enum": known}, *_others(schema), INTERPOLATION, folded]}
    nothing = [{"type": "null"}] if is_container(field.annotation) else []
    return {**described, "anyOf": [schema, *nothing, INTERPOLATION]}


def _others(schema: dict[str, Any]) -> list[dict[str, Any]]:
    """The alternatives to a name."""
    return [
        option
        for option in schema.get("anyOf", [])
        if "enum" not in option and "const" not in option
    ]
