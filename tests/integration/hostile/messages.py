"""Requests made from the descriptors of the protos: nearly right, wild, or none at all."""

from collections.abc import Mapping
from random import Random

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from tests.integration.hostile.values import decoded, scalar, with_another_type

MAX_DEPTH = 6
MANY = 3_000
Known = Mapping[str, tuple[int | float | str | bytes, ...]]
"""Values by the name of a field with which a call gets past the first checks."""


class Fuzzer:
    """Makes requests of a type; the same seed makes the same ones.

    Of `sparse` ones half leave out many fields of which no right value is known, as clients do.
    """

    def __init__(self, seed: int, known: Known, *, sparse: bool = False) -> None:
        self._random = Random(seed)
        self._known = known
        self._sparse = sparse
        self._sparseness = 0.0

    def request(self, kind: Descriptor) -> bytes:
        """One request on the wire."""
        self._sparseness = self._random.choice((0.0, 0.0, 0.5, 0.8)) if self._sparse else 0.0
        match self._random.randrange(10):
            case 0:
                return self._random.randbytes(self._random.choice((1, 2, 20, 2_000)))
            case 1:
                return self._damaged(self._message(kind, wildness=0.1).SerializeToString())
            case 2:
                return self._message(kind, wildness=1.0).SerializeToString()
            case _:
                return self._message(kind, wildness=0.2).SerializeToString()

    def stream(self, kind: Descriptor) -> list[bytes]:
        """A few requests for a call that takes a stream."""
        return [self.request(kind) for _ in range(self._random.randrange(5))]

    def _damaged(self, data: bytes) -> bytes:
        """Cut off, with a byte changed, or with a part twice."""
        if not data:
            return b"\x0a"
        place = self._random.randrange(len(data))
        match self._random.randrange(3):
            case 0:
                return data[:place]
            case 1:
                return data[:place] + self._random.randbytes(1) + data[place + 1 :]
            case _:
                return data[:place] + data

    def _message(self, kind: Descriptor, wildness: float, depth: int = 0) -> Message:
        """`wildness` is the share of the fields that are not as a client would fill them."""
        message = GetMessageClass(kind)()
        for field in kind.fields:
            if self._random.random() < wildness / 4 or self._is_left_out(field):
                continue
            if depth < MAX_DEPTH:
                self._fill(message, field, wildness, depth)
        return message

    def _is_left_out(self, field: FieldDescriptor) -> bool:
        """Returns true for some fields of which no right value is known, as clients send few."""
        if not self._sparseness:
            return False
        is_unknown = field.name not in self._known and field.name != "key"
        return is_unknown and self._random.random() < self._sparseness

    def _fill(self, message: Message, field: FieldDescriptor, wildness: float, depth: int) -> None:
        if field.is_repeated:
            self._fill_many(message, field, wildness, depth)
        elif field.message_type is not None:
            inner = self._message(field.message_type, wildness, depth + 1)
            getattr(message, field.name).CopyFrom(inner)
        else:
            setattr(message, field.name, self._value(field, wildness))

    def _fill_many(
        self, message: Message, field: FieldDescriptor, wildness: float, depth: int
    ) -> None:
        count = self._random.choice((0, 1, 2) if depth else (0, 1, 2, 5))
        if not depth and self._random.random() < wildness / 20:
            count = MANY
        values = getattr(message, field.name)
        kind = field.message_type
        if kind is None:
            one = [self._value(field, wildness) for _ in range(min(count, 5))]
            values.extend(one * (1 if field.type == field.TYPE_STRING else count // 5 + 1))
        elif kind.GetOptions().map_entry:
            self._fill_map(values, kind, count, wildness, depth)
        else:
            some = [self._message(kind, wildness, depth + 1) for _ in range(min(count, 5))]
            if sum(one.ByteSize() for one in some) > MANY:
                count = len(some)
            values.extend(some * (count // max(1, len(some))))

    def _fill_map(
        self, values: object, kind: Descriptor, count: int, wildness: float, depth: int
    ) -> None:
        key, value = kind.fields_by_name["key"], kind.fields_by_name["value"]
        for _ in range(min(count, 50)):
            name = self._value(key, wildness)
            if value.message_type is None:
                values[name] = self._value(value, wildness)  # type: ignore[index]
            else:
                inner = self._message(value.message_type, wildness, depth + 1)
                values[name].CopyFrom(inner)  # type: ignore[index]

    def _value(self, field: FieldDescriptor, wildness: float) -> int | float | bool | str | bytes:
        # Fields of one name may have different types: a role is a number of an enum, or a text.
        is_text = field.type == FieldDescriptor.TYPE_STRING
        known = [v for v in self._known.get(field.name, ()) if isinstance(v, str) == is_text]
        if known and self._random.random() > wildness:
            return self._retyped(self._random.choice(known))
        return scalar(field, self._random)

    def _retyped(self, known: int | float | str | bytes) -> int | float | str | bytes:
        """Returns a value as it is, or sometimes with another type somewhere in what it holds."""
        if not isinstance(known, str) or self._random.randrange(3):
            return known
        found = decoded(known)
        return found[1](with_another_type(found[0], self._random)) if found else known
