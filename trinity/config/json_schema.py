"""The configuration's JSON Schema, for editors: meanings, older names, planned values included."""

from collections.abc import Iterator
from typing import Any

from pydantic.fields import FieldInfo

from trinity.config.meanings import meaning_of
from trinity.config.root import Config
from trinity.config.section import Section, is_container, literals
from trinity.config.shape import sections_below
from trinity.config.status import Status, choices_of, mark_of, status_of

INTERPOLATION = {"type": "string", "pattern": r"\$\{.+\}"}
"""An expression that OmegaConf replaces by a value."""


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
        text = f"Called `{renamed.to.removeprefix('/')}` here."
        properties[name] = {"description": text, "deprecated": True}


def _property(
    schema: dict[str, Any], section: type[Section], name: str, field: FieldInfo
) -> dict[str, Any]:
    mark, status = mark_of(field), status_of(field)
    text = meaning_of(section, name)
    default = schema.pop("default", None)
    schema.pop("title", None)
    described: dict[str, Any] = {"description": text}
    if mark is not None:
        described["description"] = f"{text} {status.capitalize()}: {mark.reason}."
    if status is Status.NO_EFFECT:
        described["deprecated"] = True
    if default is not None:
        described["default"] = default
    values = [*literals(field.annotation)]
    if values:
        choices = choices_of(field)
        known = [*values, *choices.aliases, *choices.planned]
        folded = {"type": "string", "pattern": f"^(?i:{'|'.join(map(_plain, known))})$"}
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


def _plain(value: str) -> str:
    return value.replace("+", r"\+").replace(".", r"\.")
