"""How many parts a message has, counted before it is parsed: empty ones cost hundreds of bytes."""

from google.protobuf.descriptor import Descriptor, FieldDescriptor

FIXED_BYTES = {1: 8, 5: 4}
"""Length of a value by the way it is written: the lowest bits of what begins a field."""
VARINT, LENGTH = 0, 2
NOT_PACKED = {
    FieldDescriptor.TYPE_STRING,
    FieldDescriptor.TYPE_BYTES,
    FieldDescriptor.TYPE_MESSAGE,
}


def count_parts(body: bytes, kind: Descriptor, most: int) -> int:
    """Fields and packed numbers, inner messages included; stops soon after `most` of them.

    Of what is no message of this kind it counts a beginning: parsing will tell.
    """
    try:
        return _count(body, kind, most)
    except IndexError:
        return 0


def _count(body: bytes, kind: Descriptor, most: int) -> int:
    count, open_parts = 0, [(0, len(body), kind)]
    while open_parts and count <= most:
        place, end, own = open_parts.pop()
        while place < end and count <= most:
            tag, place = _number(body, place)
            count += 1
            written = tag & 7
            if written == VARINT:
                _, place = _number(body, place)
            elif written in FIXED_BYTES:
                place += FIXED_BYTES[written]
            elif written == LENGTH:
                length, place = _number(body, place)
                inner_end = min(place + length, end)
                field = own.fields_by_number.get(tag >> 3)
                if field is not None and field.message_type is not None:
                    open_parts.append((place, inner_end, field.message_type))
                elif field is not None and field.is_repeated and field.type not in NOT_PACKED:
                    count += inner_end - place
                place = inner_end
            else:
                return count
    return count


def _number(body: bytes, place: int) -> tuple[int, int]:
    """A number of variable length, and where it ends."""
    value = shift = 0
    while True:
        byte = body[place]
        place += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, place
        shift += 7
        if shift > 63:
            raise IndexError
