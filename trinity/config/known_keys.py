"""Finds the nearest existing key, to suggest it for an unknown one."""

from collections.abc import Iterator

from trinity.config.near import nearest
from trinity.config.root import Config
from trinity.config.section import Section
from trinity.config.shape import sections_below
from trinity.config.status import Status, status_of


def similar_key(section: type[Section], prefix: str, name: str) -> str | None:
    """The valid key that was probably meant: one like it here, or the same name elsewhere."""
    elsewhere = next((key for key in _keys(Config, "") if key.split(".")[-1] == name), None)
    near = nearest(name, _acting(section))
    if near is None and elsewhere is None:
        near = nearest(name, (*section.model_fields, *section.old_names))
    if near is not None:
        return f"{prefix}.{near}" if prefix else near
    return elsewhere


def _acting(section: type[Section]) -> list[str]:
    fields = section.model_fields.items()
    return [name for name, field in fields if status_of(field) is Status.ACTS]


def _keys(section: type[Section], prefix: str) -> Iterator[str]:
    below = sections_below(section)
    for name in _acting(section):
        if name == "stages":
            continue
        yield prefix + name
        if name in below:
            yield from _keys(below[name], f"{prefix}{name}.")
