"""All messages of the contracts, by what is sent and what is answered."""

from collections.abc import Iterable, Iterator

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from trinity.api.v1 import experience_pb2
from trinity.runtime.rpc.bounds import name_of
from trinity.runtime.rpc.channel import _CONTRACTS

RESULTS = experience_pb2.DESCRIPTOR.message_types_by_name["RunResultBatch"]
"""What comes over the broker."""


def requests() -> Iterator[Descriptor]:
    for file in _CONTRACTS:
        for service in file.DESCRIPTOR.services_by_name.values():
            yield from (method.input_type for method in service.methods)


def answers() -> Iterator[Descriptor]:
    for file in _CONTRACTS:
        for service in file.DESCRIPTOR.services_by_name.values():
            yield from (method.output_type for method in service.methods)


def fields_of(kinds: Iterable[Descriptor]) -> list[FieldDescriptor]:
    """The fields of messages and of all their parts, each once."""
    found: dict[str, FieldDescriptor] = {}
    waiting = list(kinds)
    while waiting:
        for field in waiting.pop().fields:
            if field.full_name not in found:
                found[field.full_name] = field
                if field.message_type is not None:
                    waiting.append(field.message_type)
    return list(found.values())


def has_any_size(field: FieldDescriptor) -> bool:
    """True of texts, bytes, lists, maps and messages of others, which have no size of their own."""
    kind = field.message_type
    is_foreign = kind is not None and not kind.full_name.startswith("trinity.")
    is_text = field.type in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)
    return bool(field.is_repeated or is_foreign or is_text)


def sized_names(kinds: Iterable[Descriptor]) -> set[str]:
    """The names of such fields, without those of foreign messages and of the entries of maps."""
    return {name_of(field) for field in fields_of(kinds) if has_any_size(field) and _is_own(field)}


def _is_own(field: FieldDescriptor) -> bool:
    kind = field.containing_type
    assert kind is not None
    return kind.full_name.startswith("trinity.") and not kind.GetOptions().map_entry
