"""The logs on the page Run, with filters; only the form refreshes this part."""

from datetime import UTC, datetime

import streamlit as st

from trinity.errors import TrinityError
from trinity.run.log_files import LEVELS, LogFilter, since_of
from trinity.studio.context import StudioContext, ViewedRun
from trinity.studio.logs import LogPage, line_text, read_page
from trinity.studio.plain_text import plain_text
from trinity.studio.system import NO_DIRECTORY
from trinity.studio.widgets import show_long_text, show_problem, show_text

ALL = "all"
USUAL_LEVEL = LEVELS.index("INFO")
NO_LINES = "No line satisfies this."
ELSEWHERE = (
    "Logs are where the services run: `trinity log` shows them there, or your cluster's tools."
)


def show_logs(context: StudioContext, viewed: ViewedRun) -> None:
    """Shows the newest lines of the run's logs."""
    with st.expander("Logs"):
        if viewed.connection.job_dir == NO_DIRECTORY or not context.visitor().is_owner:
            show_text(ELSEWHERE)
            return
        try:
            _show(viewed)
        except TrinityError as error:
            show_problem(error)


def _show(viewed: ViewedRun) -> None:
    job_dir = viewed.connection.job_dir
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
