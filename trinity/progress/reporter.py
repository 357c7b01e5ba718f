"""The one thing the launcher reports to: a screen on a terminal, plain lines elsewhere."""

import errno
import os
import sys
from typing import Protocol

from rich.console import Console

from trinity.api.v1 import buffer_pb2
from trinity.progress.lines import LineReporter
from trinity.progress.screen import ScreenReporter
from trinity.progress.view import RunView

READ_BY_NOBODY = (errno.EPIPE, errno.EIO)


class Reporter(Protocol):
    """Shows a run to a person."""

    def say(self, text: str) -> None:
        """One line of the launcher's own."""

    def event(self, view: RunView, event: buffer_pb2.ProgressEvent) -> None:
        """Show an event that `view` has already taken in."""

    def refresh(self, view: RunView) -> None:
        """Bring what stays on screen up to date."""

    def close(self) -> None:
        """Give the terminal back."""


def make_reporter(title: str) -> Reporter:
    """A screen if standard output is a terminal that can show one."""
    console = Console()
    if console.is_terminal and not console.is_dumb_terminal:
        return ScreenReporter(console, title)
    return LineReporter(write_line)


def write_line(text: str) -> None:
    """Write a line at once, so that a pipe's reader sees it as it happens.

    Where the reader or the terminal has gone, nothing more is told; a full disk costs the line.
    """
    try:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    except OSError as error:
        if error.errno in READ_BY_NOBODY:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
