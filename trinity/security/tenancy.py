"""Which tenant a request is about, read from its fields whatever its type."""

from collections.abc import Iterator
from functools import cache
from typing import Any, TypeAlias

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message

TENANT = "tenant"
EXPERIMENT = "experiment_id"

Path: TypeAlias = tuple[str, ...]


def tenants_of(request: Message) -> list[str] | None:
    """Every tenant that the request names, empty names too; None where its type names none."""
    paths = paths_to(request.DESCRIPTOR, TENANT)
    return [value for path in paths for value in values_at(request, path)] if paths else None


def experiments_of(request: Message) -> list[str]:
    """Every experiment that the request names."""
    paths = paths_to(request.DESCRIPTOR, EXPERIMENT)
    return [value for path in paths for value in values_at(request, path) if value]


@cache
def paths_to(message: Descriptor, name: str) -> tuple[Path, ...]:
    """Where fields of this name lie in a message and in those that it holds."""
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
    """What stands at the path; a part that is not set counts as an empty text, or as zero."""
    value = getattr(message, path[0])
    if len(path) == 1:
        yield value
        return
    for part in [value] if isinstance(value, Message) else value:
        yield from values_at(part, path[1:])
