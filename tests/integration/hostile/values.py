"""Values that programs stumble over, by the type of a field."""

import base64
import json
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from random import Random

from google.protobuf.descriptor import FieldDescriptor

from trinity.runtime.json_values import JsonValue

INTEGERS = (0, 1, -1, 2, 3, 7, 64, 1_000, 10**9, 2**31 - 1, -(2**31))
LONG_INTEGERS = (*INTEGERS, 2**31, 2**32, 2**53 + 1, 10**15, 2**63 - 1, -(2**63))
NUMBERS = (
    *(0.0, -0.0, 1.0, 0.5, 30.0, -1.0, 1e-300, 5e-324, 1e308, -1e308, 86_401.0),
    *(float("nan"), float("inf"), float("-inf")),
)
DEEP = "[" * 20_000
PLANS = (
    "{}",
    "[]",
    "null",
    DEEP,
    '{"stages": [{"name": "rft", "roles": ["trainer"]}]}',
    '{"stages": [{"name": "\\ud800", "roles": ["explorer"]}]}',
    '{"stages": [{"name": "a\\u0000", "roles": ["trainer", "trainer"]}]}',
    '{"stages": [{"name": 1, "roles": "trainer"}], "job_dir": ["/"]}',
    '{"a": NaN, "b": 1e999, "c": ' + "9" * 5_000 + "}",
    json.dumps({"stages": [{"name": str(i), "roles": ["trainer"]} for i in range(1_001)]}),
)
CURSORS = tuple(
    base64.urlsafe_b64encode(place.encode()).decode()
    for place in (
        *(DEEP, "[]", "{}", "null", "1" * 5_000),
        '[0, 0, 0, 0, "\\ud800", 0, "00000000-0000-0000-0000-000000000000"]',
        '[0, 0, 0, 0, "\\u0000", 0, "00000000-0000-0000-0000-000000000000"]',
        '[0, 0, 0, 0, "", 0, "00000000-0000-0000-0000-000000000000"]',
        '[4611686018427387904, 0, 0, 0, "", 0, "00000000-0000-0000-0000-000000000000"]',
        '[true, false, true, false, true, true, "00000000-0000-0000-0000-000000000000"]',
    )
)
"""Such as QueryService gives, and is to get back as they were."""
TEXTS = (
    ("", " ", "a", "default", "rft", "project/run", "train", "gone"),
    ("\0", "a\0b", "default\0"),
    ("a\nb 2026 ERROR forged", "\r\n", "\x0b", "\x1b[2J", "\u2028", "\u202etxt", "\ufeff"),
    ("a.b", "a b", ">", "*", "a*", "%s%n%x", "../../etc/passwd", "/dev/zero", "$JS.API"),
    ("'; DROP TABLE stage; --", "\\", '"', "{}", "NaN", "None"),
    ("x" * 501, "\u00e9" * 499, "\U0001f4a5" * 300, "x" * 5_000, "y" * 100_000),
    ("00000000-0000-0000-0000-000000000000", "urn:uuid:" + "f" * 32, "{" + "0" * 32 + "}"),
    ("g" * 36, "\u0660" * 32, "0" * 31, "-" * 36, "0" * 33),
    PLANS,
    CURSORS,
)
"""Kinds of texts, each as likely as the next."""
JSON_VALUES: tuple[JsonValue, ...] = (
    *(None, True, False, 0, 1, -1, 2**31, 2**63, -(2**63) - 1, 10**40),
    *(0.5, -0.0, 1e308, -1e308, 5e-324, "", "a", "1", "a\0b", "\ud800", "x" * 5_000),
    *json.loads('[[], [[]], [null], [true], [0, ""], [[[[1]]]], {}, {"": null}, {"a": {"a": []}}]'),
)
"""One of each type, and of each kind of a type, that may stand where another is expected."""


def with_other_types(document: JsonValue) -> Iterator[JsonValue]:
    """Yields a JSON value with one place after the other of another type, or left out."""
    yield from JSON_VALUES
    if isinstance(document, dict):
        for key, value in document.items():
            yield {name: own for name, own in document.items() if name != key}
            yield from ({**document, key: other} for other in with_other_types(value))
    elif isinstance(document, list):
        for place, value in enumerate(document):
            before, after = document[:place], document[place + 1 :]
            yield [*before, *after]
            yield from ([*before, other, *after] for other in with_other_types(value))


def with_another_type(document: JsonValue, random: Random) -> JsonValue:
    """Returns one of them, at a random place."""
    inner = list(document) if isinstance(document, dict) else range(len(_items(document)))
    if not inner or random.randrange(NUM_RANDOM) == 0:
        return random.choice(JSON_VALUES)
    if isinstance(document, dict):
        key = random.choice(list(document))
        return {**document, key: with_another_type(document[key], random)}
    items = _items(document)
    place = random.randrange(len(items))
    return [*items[:place], with_another_type(items[place], random), *items[place + 1 :]]


def _items(document: JsonValue) -> list[JsonValue]:
    return document if isinstance(document, list) else []


def decoded(text: str) -> tuple[JsonValue, Callable[[JsonValue], str]] | None:
    """Returns what a JSON text or a cursor holds, and how to write it; None for other texts."""
    for read, write in (
        (str, json.dumps),
        (lambda given: base64.urlsafe_b64decode(given.encode()).decode(), cursor_of),
    ):
        with suppress(ValueError, RecursionError):
            document = json.loads(read(text))
            if isinstance(document, (dict, list)):
                return document, write
    return None


def cursor_of(document: JsonValue) -> str:
    """Returns a cursor that holds this."""
    return base64.urlsafe_b64encode(json.dumps(document).encode()).decode()


NUM_RANDOM = 4


def integer(random: Random, bits: int) -> int:
    """A whole number of at most `bits` bits."""
    if random.randrange(NUM_RANDOM) == 0:
        return random.randrange(-(2 ** (bits - 1)), 2 ** (bits - 1))
    return random.choice(LONG_INTEGERS if bits > 32 else INTEGERS)


def text(random: Random) -> str:
    """A text: known to be awkward, an id that nobody has, or long and not to be compressed."""
    match random.randrange(len(TEXTS) + 2):
        case 0:
            return "".join(chr(random.randrange(0x20000, 0x2A000)) for _ in range(700))
        case 1:
            return str(uuid.UUID(int=random.getrandbits(128)))
        case _:
            return random.choice(random.choice(TEXTS))


def content(random: Random) -> bytes:
    """Bytes of a length that hashes have, nearly have, or do not have."""
    return random.randbytes(random.choice((0, 1, 31, 32, 32, 32, 33, 64, 10_000)))


def scalar(field: FieldDescriptor, random: Random) -> int | float | bool | str | bytes:
    """A value that the field takes on the wire, whether or not it means anything."""
    match field.type:
        case FieldDescriptor.TYPE_STRING:
            return text(random)
        case FieldDescriptor.TYPE_BYTES:
            return content(random)
        case FieldDescriptor.TYPE_BOOL:
            return random.random() < 0.5
        case FieldDescriptor.TYPE_DOUBLE | FieldDescriptor.TYPE_FLOAT:
            return random.choice(NUMBERS)
        case FieldDescriptor.TYPE_INT64 | FieldDescriptor.TYPE_SINT64:
            return integer(random, 64)
        case FieldDescriptor.TYPE_INT32 | FieldDescriptor.TYPE_ENUM:
            return integer(random, 32)
    raise AssertionError(f"no values for the type of {field.full_name}")
