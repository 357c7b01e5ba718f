"""Structure of the configuration: the sections below each key."""

from collections.abc import Iterator
from functools import cache
from typing import Any, get_args, get_origin

from pydantic.fields import FieldInfo

from trinity.config.keys import Location
from trinity.config.section import Section


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


Written = tuple[Location, type[Section], dict[str, Any]]
"""The location of a section, its type, and the written values."""


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
