"""Base of all sections: frozen, closed to unknown keys, documented in place."""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args, get_origin

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    SerializerFunctionWrapHandler,
    StringConstraints,
    model_serializer,
    model_validator,
)

from trinity.config.status import Renamed, choices_of, mark_of

Args = dict[str, JsonValue]
"""Arguments passed on unread to a function that the user chose by name."""

PathSegment = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
"""A name that becomes part of a path: letters, digits, `.`, `_`, `-`, first a letter or digit."""

OptionalSegment = Annotated[str, StringConstraints(pattern=r"^([A-Za-z0-9][A-Za-z0-9._-]*)?$")]

Positive = Annotated[int, Field(gt=0)]
NonNegative = Annotated[int, Field(ge=0)]
Port = Annotated[int, Field(gt=0, lt=1 << 16)]
NumLogprobs = Annotated[int, Field(ge=0, le=20)]
"""Bounded by the number that the engine can return."""

S = TypeVar("S", bound="Section")


class Section(BaseModel):
    """A part of the configuration as the user wrote it; derived values are in `plan.py`.

    Fields are not required here, even if no default works (a model's path): a stage may give any
    part of a section, so only the merged stage can tell what is missing. Fields with a mark of
    `status.py` are never read, and are left out when a section is serialized.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)

    old_names: ClassVar[Mapping[str, Renamed]] = {}
    """Keys of files for Trinity-RFT, to their current names."""

    @model_validator(mode="before")
    @classmethod
    def _as_meant(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        return {key: _meant(cls, key, value) for key, value in values.items()}

    @model_serializer(mode="wrap")
    def _what_acts(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        written: dict[str, Any] = write(self)
        unread = marked_names(type(self))
        return {key: value for key, value in written.items() if key not in unread}


def _meant(section: type[Section], name: str, value: Any) -> Any:
    field = section.model_fields.get(name)
    if field is None:
        return value
    if isinstance(value, bool) and has_number(field.annotation):
        # YAML reads `on` and `yes` as true, which pydantic would take for the number 1.
        return str(value).lower()
    if value is None and is_container(field.annotation):
        return field.get_default(call_default_factory=True)
    return known_value(section, name, value)


def usual(section: type[S]) -> S:
    """Default of a field: an empty section, made when it is needed.

    Its schema is part of the outermost section's, and is not built separately.
    """
    field: S = Field(default_factory=section.model_construct)
    return field


@cache
def marked_names(section: type[Section]) -> frozenset[str]:
    """Fields that nothing reads."""
    fields = section.model_fields.items()
    return frozenset(name for name, field in fields if mark_of(field) is not None)


def known_value(section: type[Section], name: str, value: Any) -> Any:
    """The canonical name of a value, matched without case and through its aliases."""
    if not isinstance(value, str):
        return value
    return _values_by_folded_name(section, name).get(value.casefold(), value)


@cache
def _values_by_folded_name(section: type[Section], name: str) -> Mapping[str, str]:
    field = section.model_fields[name]
    choices = choices_of(field)
    names = {value: value for value in (*literals(field.annotation), *choices.planned)}
    return {known.casefold(): value for known, value in {**names, **choices.aliases}.items()}


def literals(annotation: Any) -> Iterator[str]:
    """Yields the texts that a type's literals allow."""
    if get_origin(annotation) is Literal:
        yield from (value for value in get_args(annotation) if isinstance(value, str))
    elif get_origin(annotation) not in (dict, tuple, list):
        for argument in get_args(annotation):
            yield from literals(argument)


def has_number(annotation: Any) -> bool:
    """True if a type has numbers anywhere in it."""
    return annotation in (int, float) or any(has_number(arg) for arg in get_args(annotation))


def is_container(annotation: Any) -> bool:
    """True if an empty value under a key means an empty section, mapping or list."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return True
    return get_origin(annotation) in (dict, tuple, list)
