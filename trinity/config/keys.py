"""Places in a configuration: `stages[0].buffer.batch_size`, and the values that stand there."""

import re
from collections.abc import Iterator
from typing import Any

Location = tuple[str | int, ...]

_PART = re.compile(r"\[(\d+)\]|([^.\[\]]+)")


def dotted(location: Location) -> str:
    """`stages[0].buffer.batch_size`."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    return "".join(parts).removeprefix(".")


def parsed(key: str) -> Location:
    """The location of such a text."""
    return tuple(int(number) if number else name for number, name in _PART.findall(key))


def top_of(location: Location) -> Location:
    """Where the keys of a location's stage begin; the file's beginning for those of no stage."""
    return location[:2] if location[:1] == ("stages",) else ()


def general(location: Location) -> str:
    """The key as documentation calls it: of no particular stage, position or name."""
    inside = location[2:] if location[:1] == ("stages",) and len(location) > 2 else location
    return ".".join(part for part in inside if isinstance(part, str))


def has(tree: Any, location: Location) -> bool:
    """Whether anything stands there."""
    for part in location:
        is_key = isinstance(tree, dict) and part in tree
        is_position = isinstance(tree, list) and isinstance(part, int) and part < len(tree)
        if not (is_key or is_position):
            return False
        tree = tree[part]
    return True


def existing(tree: Any, location: Location) -> Location:
    """The part of a location that leads to something; pydantic goes on into its own types."""
    while location and not has(tree, location):
        location = location[:-1]
    return location


def get(tree: Any, location: Location) -> Any:
    """What stands there, which must be something."""
    for part in location:
        tree = tree[part]
    return tree


def put(tree: dict[str, Any], location: Location, value: Any) -> None:
    """Set a value; sections on the way are made.

    Raises: KeyError where something that is no section stands in the way.
    """
    place: Any = tree
    for part in location[:-1]:
        place = place.setdefault(part, {}) if isinstance(place, dict) else place[part]
        if not isinstance(place, dict | list):
            raise KeyError(part)
    place[location[-1]] = value


def drop(tree: Any, location: Location) -> None:
    """Remove what stands there, if anything does; items of lists stay."""
    if location and has(tree, location) and isinstance(location[-1], str):
        del get(tree, location[:-1])[location[-1]]


def leaves(tree: Any, at: Location = ()) -> Iterator[tuple[Location, Any]]:
    """Every value that is no section with keys."""
    if isinstance(tree, dict) and tree:
        for key, value in tree.items():
            yield from leaves(value, (*at, key))
    else:
        yield at, tree
