"""Counts the fields of a message before it is parsed: even empty ones cost hundreds of bytes."""

from google.protobuf.descriptor import Descriptor, FieldDescriptor

FIXED_BYTES = {1: 8, 5: 4}
"""Length of a fixed-size value by wire type, which is in the lowest bits of a field's tag."""
VARINT, LENGTH = 0, 2
NOT_PACKED = {
    FieldDescriptor.TYPE_STRING,
    FieldDescriptor.TYPE_BYTES,
    FieldDescriptor.TYPE_MESSAGE,
}


def count_parts(body: bytes, kind: Descriptor, most: int) -> int:
    """Counts fields and packed numbers, nested messages included; stops soon after `most`.

    In malformed input it counts only a part, or returns 0: parsing will report the error.
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
            wire_type = tag & 7
            if wire_type == VARINT:
                _, place = _number(body, place)
            elif wire_type in FIXED_BYTES:
                place += FIXED_BYTES[wire_type]
            elif wire_type == LENGTH:
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
    """Decodes a varint; returns it and the offset of its end."""
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
