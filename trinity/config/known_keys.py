"""Which keys the configuration has, to offer the nearest one for a key that it has not."""

from collections.abc import Iterator
from typing import Any, get_args, get_origin

from trinity.config.near import nearest
from trinity.config.root import Config
from trinity.config.section import Section


def section_at(location: tuple[int | str, ...]) -> type[Section] | None:
    """The section that a location inside `Config` leads to."""
    section: type[Section] | None = Config
    is_name = False
    for part in location:
        if is_name:
            is_name = False
        elif isinstance(part, str) and section is not None:
            is_name = part in _by_name(section)
            section = _subsections(section).get(part)
    return section


def _by_name(section: type[Section]) -> set[str]:
    """Keys below which there are sections by names that the user chooses."""
    fields = section.model_fields.items()
    return {name for name, field in fields if get_origin(field.annotation) is dict}


def similar_key(section: type[Section], prefix: str, name: str) -> str | None:
    """The valid key that was probably meant: one like it here, or the same name elsewhere."""
    near = nearest(name, section.model_fields)
    if near is not None:
        return f"{prefix}.{near}" if prefix else near
    return next((key for key in _keys(Config, "") if key.split(".")[-1] == name), None)


def _keys(section: type[Section], prefix: str) -> Iterator[str]:
    subsections = _subsections(section)
    for name in section.model_fields:
        if name == "stages":
            continue
        yield prefix + name
        if name in subsections:
            yield from _keys(subsections[name], f"{prefix}{name}.")


def _subsections(section: type[Section]) -> dict[str, type[Section]]:
    found = {name: _section_in(f.annotation) for name, f in section.model_fields.items()}
    return {name: inner for name, inner in found.items() if inner is not None}


def _section_in(annotation: Any) -> type[Section] | None:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    return next((found for arg in get_args(annotation) if (found := _section_in(arg))), None)
