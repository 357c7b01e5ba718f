"""The newest lines of a run's logs on the page Run; only the form refreshes this part.

Only the ends of the files are read, whatever their size.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import streamlit as st

from trinity.errors import TrinityError, UserError
from trinity.run.local.addresses import stack_directory_of
from trinity.run.log_files import (
    LEVELS,
    LogFilter,
    LogLine,
    by_time,
    log_files,
    since_of,
    tail_messages,
)
from trinity.studio.pages.common import RunPage
from trinity.studio.plain_text import plain_text
from trinity.studio.system import NO_DIRECTORY
from trinity.studio.widgets import show_long_text, show_problem, show_text

TAIL_BYTES = 512 * 1024
"""Read of each file."""
MAX_LINES = 200
MAX_LINE_CHARS = 4_000
ALL = "all"
USUAL_LEVEL = LEVELS.index("INFO")
NO_LINES = "No line satisfies this."
ELSEWHERE = (
    "Logs are where the services run: `trinity log` shows them there, or your cluster's tools."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPage:
    """The newest lines that a filter takes, the newest last; texts are untrusted."""

    services: tuple[str, ...]
    """All that have a log."""
    lines: tuple[LogLine, ...]
    num_more: int
    """Lines before these that were read and taken."""
    is_cut: bool
    """True if a file is longer than the part that was read."""


def show_logs(page: RunPage) -> None:
    """Shows the newest lines of the run's logs."""
    with st.expander("Logs"):
        job_dir = page.viewed.connection.job_dir
        if job_dir == NO_DIRECTORY or not page.context.visitor().is_owner:
            show_text(ELSEWHERE)
            return
        try:
            _show(job_dir)
        except TrinityError as error:
            show_problem(error)


def _show(job_dir: Path) -> None:
    services = read_page(job_dir, "", LogFilter(level="CRITICAL")).services
    with st.form("log", border=False):
        first, second, third, fourth, button = st.columns(
            [2, 2, 2, 4, 2], vertical_alignment="bottom"
        )
        service = first.selectbox("Service", (ALL, *services), format_func=plain_text)
        level = second.selectbox("At least", LEVELS, index=USUAL_LEVEL)
        since = third.text_input("Since", placeholder="10m")
        text = fourth.text_input("Contains")
        button.form_submit_button("Show", width="stretch")
    wanted = LogFilter(
        level=level,
        since=since_of(since, datetime.now(UTC)) if since.strip() else None,
        text=text.strip(),
    )
    _show_page(read_page(job_dir, "" if service == ALL else service, wanted))


def _show_page(page: LogPage) -> None:
    if not page.lines:
        show_text(NO_LINES)
    else:
        before = f", {page.num_more:,} more before them" if page.num_more else ""
        show_text(f"The newest {len(page.lines):,} lines{before}; the newest last")
        show_long_text("\n".join(map(line_text, page.lines)))
    if page.is_cut:
        show_text("Only the ends of long files are read here: `trinity log` reads them whole.")


def read_page(job_dir: Path, service: str, wanted: LogFilter) -> LogPage:
    """Returns the newest lines of one service, or with an empty name of all.

    Raises: UserError if the run has no logs here.
    """
    home = stack_directory_of(job_dir)
    files = log_files(home, ())
    chosen = {name: path for name, path in files.items() if service in ("", name)}
    taken = sorted(_taken(chosen, wanted), key=by_time)
    return LogPage(
        services=tuple(files),
        lines=tuple(taken[-MAX_LINES:]),
        num_more=max(0, len(taken) - MAX_LINES),
        is_cut=any(_size(path) > TAIL_BYTES for path in chosen.values()),
    )


def line_text(line: LogLine) -> str:
    """Formats a line as `trinity log` prints it, with what follows it; a very long one is cut."""
    time = line.time.strftime("%m-%d %H:%M:%S.%f")[:-3]
    text = "\n".join(
        (f"{time} {line.service} {line.level} {line.text}", *(f"    {more}" for more in line.more))
    )
    if len(text) <= MAX_LINE_CHARS:
        return text
    return f"{text[:MAX_LINE_CHARS]} [{len(text) - MAX_LINE_CHARS:,} more characters]"


def _taken(files: dict[str, Path], wanted: LogFilter) -> Iterator[LogLine]:
    for name, path in files.items():
        try:
            yield from filter(wanted.takes, tail_messages(name, path, TAIL_BYTES))
        except OSError as error:
            raise UserError(f"cannot read {path}: {error.strerror}") from error


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
