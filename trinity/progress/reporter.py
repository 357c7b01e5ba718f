"""The launcher's output: a screen on a terminal, plain lines elsewhere."""

import errno
import os
import sys
from typing import Protocol

from rich.console import Console

from trinity.api.v1 import buffer_pb2
from trinity.progress.lines import LineReporter, LineSink
from trinity.progress.screen import ScreenReporter
from trinity.progress.view import RunView

CLOSED_OUTPUT_ERRORS = (errno.EPIPE, errno.EIO)


class Reporter(LineSink, Protocol):
    """Shows a run to the user."""

    def event(self, view: RunView, event: buffer_pb2.ProgressEvent) -> None:
        """Shows an event that `view` has already applied."""

    def refresh(self, view: RunView) -> None:
        """Updates what stays on screen."""

    def close(self) -> None:
        """Restores the terminal."""


def make_reporter(title: str) -> Reporter:
    """Returns a screen if standard output is a terminal that can show one, else plain lines."""
    console = Console()
    if console.is_terminal and not console.is_dumb_terminal:
        return ScreenReporter(console, title)
    return LineReporter(write_line)


def write_line(text: str) -> None:
    """Writes and flushes a line, so that a pipe's reader sees it at once.

    If the reader or the terminal has gone, further output is dropped; a full disk costs the line.
    """
    try:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    except OSError as error:
        if error.errno in CLOSED_OUTPUT_ERRORS:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
