"""Base class of sections: marks and status of keys, shared types, secrets."""

import inspect
import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from pathlib import Path
from types import GenericAlias
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
from pydantic.fields import FieldInfo

from trinity.runtime.logs import HIDDEN, redact_passwords

Args = dict[str, JsonValue]
"""Arguments passed on unread to a function that the user chose by name."""
MAX_NAME = 200
"""Bytes of a name that becomes part of a path: file systems allow 255, and endings are added."""
PathSegment = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=MAX_NAME)
]
"""A name that becomes part of a path: letters, digits, `.`, `_`, `-`, first a letter or digit."""
OptionalSegment = Annotated[
    str, StringConstraints(pattern=r"^([A-Za-z0-9][A-Za-z0-9._-]*)?$", max_length=MAX_NAME)
]
MAX_COUNT = 2**53
"""Larger counts fit into no database column, once they are multiplied."""
Positive = Annotated[int, Field(gt=0, le=MAX_COUNT)]
NonNegative = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Port = Annotated[int, Field(gt=0, lt=1 << 16)]
NumLogprobs = Annotated[int, Field(ge=0, le=20)]
"""Bounded by the number that the engine can return."""
SectionT = TypeVar("SectionT", bound="Section")
NO_SECRETS = (None, "", "EMPTY")
"""Values that are not secret; `EMPTY` is the placeholder for a key that is not given."""
_SECRET_NAME = re.compile(
    r"(api_?key|secret|passw(or)?d|passphrase|credential|(access|auth|bearer|refresh|hf)_?token"
    r"|private_?key|(^|_)token)$",
    re.IGNORECASE,
)
_SECRET_VARIABLE = re.compile(r"^[A-Z0-9_]*(KEY|TOKEN|SECRET|PASSWORD|PASS|PWD)[A-Z0-9_]*$")
_ACCEPTED_KEYS = Path(__file__).with_name("accepted_keys.txt")
_UNREAD_TYPES: Mapping[str, Any] = {
    "bool": bool,
    "int": int,
    "float": float,
    "str": str,
    "positive": Positive,
    "count": NonNegative,
    "name": PathSegment,
    "args": Args,
    "args[]": tuple[Args, ...],
}
_SECTIONS: dict[str, Any] = {}
"""All sections by the names of their classes."""
OTHER_STRATEGIES: Mapping[str, str] = {
    name: f"FSDP2 trains in {shown}'s place: it shards the weights over all ranks, with the same "
    "results"
    for name, shown in (
        ("megatron", "Megatron"),
        ("veomni", "VeOmni"),
        ("torchtitan", "TorchTitan"),
    )
}
"""Names of other back ends, each with the reason why a file that chooses it runs."""


class KeyStatus(StrEnum):
    """Status of a key; a key without a mark acts."""

    ACTS = "acts"
    NO_EFFECT = "accepted, without effect here"
    RENAMED = "renamed"
    PLANNED = "planned"


@dataclass(frozen=True, slots=True)
class PlannedKey:
    """Not supported yet; the default describes today's behaviour, so giving it is no error.

    param_offload: Annotated[bool, PlannedKey("weights stay on the device")] = False
    """

    reason: str


@dataclass(frozen=True, slots=True)
class IgnoredKey:
    """Accepted for files that have it; its purpose is served in another way here."""

    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class ValueAliases:
    """Values that users know in addition to those of the field's type."""

    planned: Mapping[str, str] = field(default_factory=dict)
    """Value to what is missing."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Other name of a value to the name here."""
    replaced: Mapping[str, str] = field(default_factory=dict)
    """Value to what the default does in its place."""


@dataclass(frozen=True, slots=True)
class RenamedKey:
    """An older name, whose value is used under the new one."""

    to: str
    """The key beside it, or with a `/` in front the key from the top of the file or stage."""


Mark = PlannedKey | IgnoredKey


@dataclass(frozen=True, slots=True)
class UnreadKey:
    """A key that is accepted but never read: a row of `accepted_keys.txt`."""

    name: str
    type: str
    default: str
    """As JSON; empty for a section of defaults."""
    meaning: str
    mark: Mark

    def annotation(self) -> Any:
        """Returns the type of its values, with the mark."""
        return Annotated[_annotation(self.type), self.mark]

    def field(self) -> Any:
        """Returns the field's default."""
        if not self.default:
            return default_section(_SECTIONS[self.type])
        value = json.loads(self.default)
        if value == {}:
            return Field(default_factory=dict)
        return Field(default=tuple(value) if isinstance(value, list) else value)


@dataclass(frozen=True, slots=True)
class AcceptedKeys:
    """The keys of a section that are no fields of its class."""

    unread: list[UnreadKey] = field(default_factory=list)
    renamed: dict[str, RenamedKey] = field(default_factory=dict)


@cache
def accepted_keys() -> Mapping[str, AcceptedKeys]:
    """Returns the keys that are accepted and not read under their names, by the section's class."""
    found: defaultdict[str, AcceptedKeys] = defaultdict(AcceptedKeys)
    mark: Mark = IgnoredKey("")
    for line in _ACCEPTED_KEYS.read_text(encoding="utf-8").splitlines():
        place, *cells = line.split(" | ")
        section, _, name = place.partition(".")
        match cells:
            case [to]:
                found[section].renamed[name] = RenamedKey(to)
            case [kind, default, meaning]:
                found[section].unread.append(UnreadKey(name, kind, default, meaning, mark))
            case [] if line:
                status, _, reason = line.partition(": ")
                mark = PlannedKey(reason) if status == "planned" else IgnoredKey(reason)
    return found


def _annotation(name: str) -> Any:
    if name.endswith("?"):
        return _annotation(name[:-1]) | None
    if name.startswith("{"):
        return GenericAlias(dict, (str, _annotation(name.strip("{}"))))
    if "/" in name:
        return Literal[tuple(name.split("/"))]
    return _SECTIONS.get(name) or _UNREAD_TYPES[name]


def mark_of(field: FieldInfo) -> Mark | None:
    """The mark that says why a field does not act; None if it acts."""
    return next(
        (mark for mark in field.metadata if isinstance(mark, PlannedKey | IgnoredKey)), None
    )


def choices_of(field: FieldInfo) -> ValueAliases:
    """Returns the additional values of a field."""
    return next((mark for mark in field.metadata if isinstance(mark, ValueAliases)), ValueAliases())


def status_of(field: FieldInfo) -> KeyStatus:
    """The status of a field, by its mark."""
    match mark_of(field):
        case PlannedKey():
            return KeyStatus.PLANNED
        case IgnoredKey():
            return KeyStatus.NO_EFFECT
    return KeyStatus.ACTS


class Section(BaseModel):
    """A part of the configuration as the user wrote it; derived values are in the plan.

    Fields are not required here, even if no default works (a model's path): a stage may give any
    part of a section, so missing values are only found in the merged stage. Fields with a mark are
    never read, and are left out when a section is serialized.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)

    old_names: ClassVar[Mapping[str, RenamedKey]] = {}
    """Keys of files for Trinity-RFT, to their current names."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Adds the keys that are only accepted."""
        super().__init_subclass__(**kwargs)
        _SECTIONS[cls.__name__] = cls
        accepted = accepted_keys().get(cls.__name__, AcceptedKeys())
        rows, own = accepted.unread, inspect.get_annotations(cls)
        cls.old_names = {**cls.old_names, **accepted.renamed}
        cls.__annotations__ = {**own, **{row.name: row.annotation() for row in rows}}
        for row in rows:
            setattr(cls, row.name, row.field())

    @model_validator(mode="before")
    @classmethod
    def _normalize(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        return {key: _normalized(cls, key, value) for key, value in values.items()}

    @model_serializer(mode="wrap")
    def _drop_unread_keys(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        written: dict[str, Any] = write(self)
        unread = unread_fields(type(self))
        return {key: value for key, value in written.items() if key not in unread}


def _normalized(section: type[Section], name: str, value: Any) -> Any:
    field = section.model_fields.get(name)
    if field is None:
        return value
    if isinstance(value, bool) and has_number(field.annotation):
        # YAML reads `on` and `yes` as true, which pydantic would take for the number 1.
        return str(value).lower()
    if value is None and is_container(field.annotation):
        return field.get_default(call_default_factory=True)
    return canonical_value(section, name, value)


def default_section(section: type[SectionT]) -> SectionT:
    """Default of a field: an empty section, made when it is needed.

    Its schema is part of the outermost section's, and is not built separately.
    """
    field: SectionT = Field(default_factory=section.model_construct)
    return field


@cache
def unread_fields(section: type[Section]) -> frozenset[str]:
    """Returns the names of fields that are never read."""
    fields = section.model_fields.items()
    return frozenset(name for name, field in fields if mark_of(field) is not None)


def canonical_value(section: type[Section], name: str, value: Any) -> Any:
    """The canonical name of a value, matched without case and through its aliases."""
    if not isinstance(value, str):
        return value
    return _values_by_folded_name(section, name).get(value.casefold(), value)


@cache
def _values_by_folded_name(section: type[Section], name: str) -> Mapping[str, str]:
    field = section.model_fields[name]
    choices = choices_of(field)
    own = (*literals(field.annotation), *choices.planned, *choices.replaced)
    names = {value: value for value in own}
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


def is_secret(key: str) -> bool:
    """True if the value of a dotted key must not be shown."""
    name = key.rpartition(".")[2]
    return bool(_SECRET_NAME.search(name) or _SECRET_VARIABLE.match(name))


def redact_secrets(key: str, value: Any) -> Any:
    """The value with all secrets in it redacted, at any depth."""
    if isinstance(value, dict):
        return {name: redact_secrets(f"{key}.{name}", item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [redact_secrets(key, item) for item in value]
    if is_secret(key) and value not in NO_SECRETS:
        return HIDDEN
    return redact_passwords(value) if isinstance(value, str) else value


def format_value(key: str, value: Any, most: int = 80) -> str:
    """A value for use in a message, written as in YAML."""
    value = redact_secrets(key, value)
    if value is None:
        return "null"
    text = str(value).lower() if isinstance(value, bool) else str(value)
    text = " ".join(text.split()) or "''"
    return text if len(text) <= most else f"{text[: most - 3]}..."
