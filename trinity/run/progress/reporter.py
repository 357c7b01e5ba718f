"""The launcher's output: a screen on a terminal, plain lines elsewhere."""

import contextlib
import errno
import os
import sys
from collections.abc import Iterable
from typing import Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from trinity.api.v1 import buffer_pb2
from trinity.run.progress import figures
from trinity.run.progress.lines import (
    LineReporter,
    LineSink,
    RepeatedNotices,
    event_lines,
)
from trinity.run.progress.view import RunView, StageProgressView, failed_runs_text

BAR_WIDTH = 40
SPARKS = "▁▂▃▄▅▆▇█"
SPARK_POINTS = 40
CLOSED_OUTPUT_ERRORS = (errno.EPIPE, errno.EIO)


class ScreenReporter:
    """Draws the run with rich; close it before printing other output.

    A closed terminal does not end the run.
    """

    def __init__(self, console: Console, title: str) -> None:
        self._console = console
        self._title = title
        self._notices = RepeatedNotices()
        self._live = Live(console=console, refresh_per_second=4, transient=False)
        self._live.start()

    def print_line(self, text: str) -> None:
        """Shows one line above the panel."""
        with contextlib.suppress(OSError):
            self._console.print(Text(text))

    def event(self, view: RunView, event: buffer_pb2.ProgressEvent) -> None:
        """Shows lasting events as lines; the rest is in the panel."""
        stage = view.stages.get(event.stage)
        if stage is None:
            return
        self._print_all(event_lines(stage, event, self._notices))

    def _print_all(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.print_line(line)

    def refresh(self, view: RunView) -> None:
        """Redraws the panel."""
        self._live.update(render(view, self._title))

    def close(self) -> None:
        """Says what notices came again, and leaves the last panel on the screen."""
        self._print_all(self._notices.counts())
        with contextlib.suppress(OSError):
            self._live.stop()


def render(view: RunView, title: str) -> RenderableType:
    """Returns the panel: a row for each stage, then the details of the running one."""
    stages = list(view.stages.values())
    table = Table.grid(padding=(0, 2))
    for stage in stages:
        name, clock = escape(stage.name), figures.format_clock(stage.seconds)
        total, steps = stage.total_steps or 1, f"{stage.last_step}/{stage.total_steps or '?'}"
        bar = ProgressBar(total=total, completed=stage.last_step, width=BAR_WIDTH)
        table.add_row(name, bar, steps, clock)
    started = [stage for stage in stages if stage.opened_millis]
    details = _details(started[-1]) if started else Text("starting")
    return Panel(Group(table, Text(), details), title=escape(title), title_align="left")


def _details(stage: StageProgressView) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    if (reward := figures.reward(stage)) is not None:
        grid.add_row("reward", f"{reward:.3f}  {_sparks(stage)}")
    elif (loss := figures.loss(stage)) is not None:
        grid.add_row("loss", f"{loss:.4f}")
    if (done := figures.last_evaluation(stage)) is not None:
        grid.add_row(
            "accuracy",
            f"{done.headline()}  held out, version {done.version}{failed_runs_text(done)}",
        )
    if (speed := figures.tokens_per_second(stage)) is not None:
        grid.add_row("tokens/s", f"{speed:,.0f}")
    if shares := figures.time_shares(stage):
        grid.add_row("time", "  ".join(f"{name} {share:.0%}" for name, share in shares))
    if (left := figures.seconds_left(stage)) is not None:
        grid.add_row("left", figures.format_clock(left))
    return grid


def _sparks(stage: StageProgressView) -> str:
    """Draws the reward of the latest batches as a line of blocks."""
    steps = sorted(stage.batches)[-SPARK_POINTS:]
    values = [stage.batches[step].get("reward/mean", 0.0) for step in steps]
    if len(values) < 2:
        return ""
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    return "".join(SPARKS[int((value - low) / span * (len(SPARKS) - 1))] for value in values)


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
