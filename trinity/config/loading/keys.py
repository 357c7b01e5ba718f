"""Locations in a configuration, such as `stages[0].buffer.batch_size`, and their values."""

import re
from collections.abc import Iterator
from typing import Any

from trinity.config.schema.base import RenamedKey

Location = tuple[str | int, ...]

_PART = re.compile(r"\[(\d+)\]|([^.\[\]]+)")


def to_dotted(location: Location) -> str:
    """`stages[0].buffer.batch_size`."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    return "".join(parts).removeprefix(".")


def parse_key(key: str) -> Location:
    """Parses a dotted key into its location."""
    return tuple(int(number) if number else name for number, name in _PART.findall(key))


def names(text: str) -> tuple[str, ...]:
    """Returns the names that a text lists, in a table of many."""
    return tuple(text.split())


def under(section: str, text: str) -> tuple[str, ...]:
    """Returns the dotted keys of a section with the names that a text lists."""
    return tuple(f"{section}.{name}" for name in text.split())


def renamed_keys(section: str, ours: str, text: str) -> dict[str, RenamedKey]:
    """Returns keys of a veRL section that keep their names in the section `ours`."""
    return {f"{section}.{name}": RenamedKey(f"/{ours}.{name}") for name in names(text)}


def stage_location(location: Location) -> Location:
    """The location of the stage that holds a key; empty for keys of no stage."""
    return location[:2] if location[:1] == ("stages",) else ()


def documented_key(location: Location) -> str:
    """The key as the documentation writes it: of no particular stage, position or name."""
    inside = location[2:] if location[:1] == ("stages",) and len(location) > 2 else location
    return ".".join(part for part in inside if isinstance(part, str))


def has(tree: Any, location: Location) -> bool:
    """True if the tree has a value at the location."""
    for part in location:
        is_key = isinstance(tree, dict) and part in tree
        is_position = isinstance(tree, list) and isinstance(part, int) and part < len(tree)
        if not (is_key or is_position):
            return False
        tree = tree[part]
    return True


def existing_prefix(tree: Any, location: Location) -> Location:
    """The part of a location that exists in the tree; pydantic's locations go on into its types."""
    while location and not has(tree, location):
        location = location[:-1]
    return location


def get(tree: Any, location: Location) -> Any:
    """The value at the location, which must exist."""
    for part in location:
        tree = tree[part]
    return tree


def put(tree: dict[str, Any], location: Location, value: Any) -> None:
    """Sets a value; creates sections on the way.

    Raises: KeyError if a value that is not a section is in the way.
    """
    place: Any = tree
    for part in location[:-1]:
        place = place.setdefault(part, {}) if isinstance(place, dict) else place[part]
        if not isinstance(place, dict | list):
            raise KeyError(part)
    place[location[-1]] = value


def drop(tree: Any, location: Location) -> None:
    """Removes the value at the location, if there is one; items of lists stay."""
    if location and has(tree, location) and isinstance(location[-1], str):
        del get(tree, location[:-1])[location[-1]]


def cut_list(tree: Any, location: Location) -> None:
    """Ends a list before the item at the location, if there is one."""
    if location and isinstance(location[-1], int) and has(tree, location):
        items = get(tree, location[:-1])
        if isinstance(items, list):
            del items[location[-1] :]


def leaves(tree: Any, at: Location = ()) -> Iterator[tuple[Location, Any]]:
    """Yields every value that is not a section with keys."""
    if isinstance(tree, dict) and tree:
        for key, value in tree.items():
            yield from leaves(value, (*at, key))
    else:
        yield at, tree
