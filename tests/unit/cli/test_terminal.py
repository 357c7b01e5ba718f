"""Text of others is shown on a terminal, and does not steer it."""

import logging
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.subtests import as_subtests
from trinity.inspect.tables import sanitize_terminal
from trinity.runtime.control_characters import ESCAPED, escape_steering
from trinity.runtime.logs import TextFormatter

BIDIRECTIONAL = [
    chr(code) for code in (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
]
HOSTILE = "a\u202eb\x1b]0;title\x07c\x9b31md\u2066e"
SHOWN = r"a\u202eb\x1b]0;title\x07c\x9b31md\u2066e"


@as_subtests("character", BIDIRECTIONAL)
def test_what_reorders_a_line_is_escaped(character: str) -> None:
    expected = f"x\\u{ord(character):04x}y"
    text = f"x{character}y"
    assert sanitize_terminal(text) == escape_steering(text) == text.translate(ESCAPED) == expected


def test_colours_and_moves_of_our_own_stay() -> None:
    drawn = "\x1b[1;31mred\x1b[0m\x1b[2K\x1b[1A\x1b[?25l\n\tnext\r"
    assert escape_steering(drawn) == drawn


@pytest.mark.parametrize(
    "text", ["\x1b]52;c;cm0=\x07", "\x1bP1$r\x1b\\", "\x1bc", "\x9b1m", "\x7f"]
)
def test_other_sequences_are_escaped(text: str) -> None:
    assert not set("\x1b\x07\x9b\x7f") & set(escape_steering(text))


def test_letters_that_are_written_from_right_to_left_stay() -> None:
    assert escape_steering("שלום \u0645\u0631\u062d\u0628\u0627") == "שלום مرحبا"


def output_of(folder: Path, words: list[str], *, on_terminal: bool) -> str:
    """Returns what a command writes to a terminal, or to a pipe."""
    command = [sys.executable, "-m", "trinity", *words]
    if not on_terminal:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        return done.stdout + done.stderr
    reading, writing = pty.openpty()
    try:
        subprocess.run(command, cwd=folder, stdout=writing, stderr=writing)
        return os.read(reading, 65_536).decode()
    finally:
        os.close(writing)
        os.close(reading)


def test_an_error_that_repeats_text_of_others_does_not_steer(tmp_path: Path) -> None:
    words = ["run", "--config", f"{HOSTILE.replace('/', '')}.yaml"]
    assert SHOWN in output_of(tmp_path, words, on_terminal=True)


def test_what_goes_into_a_file_is_kept_as_it_is(tmp_path: Path) -> None:
    words = ["run", "--config", f"{HOSTILE}.yaml"]
    assert HOSTILE in output_of(tmp_path, words, on_terminal=False)


def test_lines_of_a_log_are_escaped_wherever_they_go() -> None:
    record = logging.LogRecord("a", logging.INFO, "", 0, HOSTILE, None, None)
    assert SHOWN in TextFormatter().format(record)
