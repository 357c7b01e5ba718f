"""Characters that steer a display are shown as what they are."""

from trinity.studio.plain_text import (
    joined,
    number_text,
    one_line,
    plain_text,
    seconds_text,
    visible_text,
)

RIGHT_TO_LEFT = "\N{RIGHT-TO-LEFT OVERRIDE}"


def test_bidirectional_and_control_characters_are_escaped() -> None:
    assert plain_text(f"a{RIGHT_TO_LEFT}b\x1b[31m\n\tc") == "a\\u202eb\\x1b[31m\n\tc"


def test_markup_stays_as_it_was_written() -> None:
    hostile = "<script>alert(1)</script> [x](javascript:1) ![](http://e/x.png) :red[x] $x$"
    assert plain_text(hostile) == hostile


def test_line_ends_are_seen_within_a_line() -> None:
    assert visible_text("a\n\tb") == "a↵→b"
    assert one_line(" a\n\n b\t ") == "a b"


def test_numbers_have_the_same_form_everywhere() -> None:
    assert number_text(0.5) == "0.50"
    assert number_text(1204.0, 0) == "1,204"
    assert number_text(0.5, is_signed=True) == "+0.50"
    assert number_text(None) == ""


def test_durations_have_one_unit_or_two() -> None:
    shown = [seconds_text(seconds) for seconds in (0.44, 42.3, 360.0, 11_520.0, None)]
    assert shown == ["0.4 s", "42 s", "6 min", "3 h 12 min", ""]


def test_empty_parts_are_left_out() -> None:
    assert joined(["a", "", "b"]) == "a · b"
