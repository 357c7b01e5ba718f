"""What a run tells goes on when nobody reads it any more."""

import os
import sys

import pytest

from trinity.run.progress.reporter import write_line


def test_a_line_for_a_reader_that_has_gone_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w") as output:
        monkeypatch.setattr(sys, "stdout", output)
        write_line("one")
        write_line("another")
        print("a third, buffered until the end")  # noqa: T201
