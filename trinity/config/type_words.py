"""Types in words: `whole number above 0`, `list of texts`, `one of ...`."""

from collections.abc import Iterable, Iterator
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types as bound
from pydantic import StringConstraints
from pydantic.fields import FieldInfo

from trinity.config.section import Section

_PLAIN = {int: "whole number", float: "number", bool: "true or false", str: "text"}
_SEGMENT = "letters, digits, `.`, `_` and `-`"


def type_in_words(field: FieldInfo) -> str:
    """Describes the values that a field accepts."""
    return _words(field.annotation, field.metadata)


def _words(annotation: Any, metadata: Iterable[object] = ()) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _words(arguments[0], (*_flat(arguments[1:]), *metadata))
    if origin in (Union, UnionType):
        return " or ".join(_alternatives(arguments, metadata))
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in arguments)
    if origin is dict:
        inner = _section(arguments[1])
        return "sections under names of your own" if inner else "keys of your own"
    if origin is tuple:
        return _list(arguments)
    if _section(annotation):
        return "section"
    return f"{_PLAIN.get(annotation, 'any value')}{_bounds(metadata)}"


def _alternatives(arguments: tuple[Any, ...], metadata: Iterable[object]) -> Iterator[str]:
    for argument in arguments:
        yield "null" if argument is NoneType else _words(argument, metadata)


def _list(arguments: tuple[Any, ...]) -> str:
    if arguments[-1] is not ...:
        return f"list of {len(arguments)}: {', '.join(_words(argument) for argument in arguments)}"
    return "list of sections" if _section(arguments[0]) else f"list, each {_words(arguments[0])}"


def _flat(metadata: Iterable[object]) -> Iterator[object]:
    for item in metadata:
        if isinstance(item, FieldInfo):
            yield from item.metadata
        else:
            yield item


def _bounds(metadata: Iterable[object]) -> str:
    words = []
    for constraint in metadata:
        match constraint:
            case bound.Gt(gt):
                words.append(f"above {gt}")
            case bound.Ge(ge):
                words.append(f"from {ge} on")
            case bound.Lt(lt):
                words.append(f"below {lt}")
            case bound.Le(le):
                words.append(f"up to {le}")
            case StringConstraints(pattern=pattern) if pattern is not None:
                words.append(f"of {_SEGMENT}")
    return f" {', '.join(words)}" if words else ""


def _section(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Section)
