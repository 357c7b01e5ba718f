"""The beginning of a UUID: its digits, with the dashes where a UUID has them or without."""

import pytest

from services.buffer.servicer.query_calls import parse_uuid_prefix
from trinity.errors import InvalidRequest

WHOLE = "0123abcd-4567-89ab-cdef-0123456789ab"
DIGITS = WHOLE.replace("-", "")


@pytest.mark.parametrize("length", range(1, 37))
def test_every_beginning_is_taken_with_dashes_and_without(length: int) -> None:
    beginning = WHOLE[:length]
    expected = beginning.replace("-", "")
    for text in (beginning, beginning.upper(), expected):
        assert parse_uuid_prefix(text, "experience_id") == expected


@pytest.mark.parametrize(
    "text",
    [
        *("", "-", "----", "g", "0x12", "1_2", "\u0661", " 1"),
        *("-0123abcd", "0123-abcd", "0123abcd--4567", f"{DIGITS[:20]}-{DIGITS[20:]}"),
        *(f"{DIGITS}0", "0" * 36, f"{WHOLE}0", f"{WHOLE}-"),
    ],
)
def test_what_no_uuid_begins_with_is_refused_by_its_field(text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^experience_id '.*' is not a UUID or the beginning"):
        parse_uuid_prefix(text, "experience_id")
