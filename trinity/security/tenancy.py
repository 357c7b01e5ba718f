"""The tenant of a request, read from its fields whatever its type."""

from collections.abc import Iterator
from functools import cache
from typing import Any, TypeAlias

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message

TENANT = "tenant"
EXPERIMENT = "experiment_id"

Path: TypeAlias = tuple[str, ...]


def tenants_of(request: Message) -> list[str] | None:
    """Returns every tenant in the request, empty names too; None if its type has no such field."""
    paths = paths_to(request.DESCRIPTOR, TENANT)
    return [value for path in paths for value in values_at(request, path)] if paths else None


def experiments_of(request: Message) -> list[str]:
    """Returns every experiment in the request."""
    paths = paths_to(request.DESCRIPTOR, EXPERIMENT)
    return [value for path in paths for value in values_at(request, path) if value]


@cache
def paths_to(message: Descriptor, name: str) -> tuple[Path, ...]:
    """Returns the paths to fields of this name in a message and its parts."""
    return tuple(_paths(message, name, ()))


def _paths(message: Descriptor, name: str, above: tuple[Descriptor, ...]) -> Iterator[Path]:
    if message in above:
        return
    for field in message.fields:
        if field.name == name:
            yield (name,)
        elif field.message_type is not None:
            for path in _paths(field.message_type, name, (*above, message)):
                yield (field.name, *path)


def values_at(message: Message, path: Path) -> Iterator[Any]:
    """Yields the values at the path; unset parts count as empty text or zero."""
    value = getattr(message, path[0])
    if len(path) == 1:
        yield value
        return
    for part in [value] if isinstance(value, Message) else value:
        yield from values_at(part, path[1:])
