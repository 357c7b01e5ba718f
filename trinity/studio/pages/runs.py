"""The page Runs: the result of one run at a glance, and all runs below Studio's places."""

import functools
import importlib
from collections.abc import Callable, Sequence

import streamlit as st

from trinity.errors import TrinityError
from trinity.run.output import pluralize
from trinity.studio.context import StudioContext, studio_context
from trinity.studio.highlight import Highlight, of_history
from trinity.studio.pages.common import RUN, all_entries, live_part, view_entry
from trinity.studio.plain_text import joined, number_text, one_line
from trinity.studio.runs import RunDirectoryState, RunEntry, missing_places
from trinity.studio.widgets import Column, Row, component, show_problem, show_table, show_text
from trinity.weights.stored import best_model

REFRESH_SECONDS = 3.0
COLUMNS = (
    Column("Run"),
    Column("Tenant"),
    Column("State", "state"),
    Column("Stage"),
    Column("Steps", "number"),
    Column("Scores", "spark"),
    Column("Best"),
    Column("Last reward", "number"),
    Column("Started"),
    Column("Remark", "text"),
)
EMPTY = "No run was started here yet. One appears as soon as `trinity run` has read its file."
OVERVIEW_HTML = '<section class="overview" aria-label="Result"></section>'
LINKS = (
    ("run", "Run", "curves, waits, logs"),
    ("experiences", "Experiences", "what it wrote, token by token"),
    ("evaluations", "Evaluations", "tasks won and lost"),
    ("tasks", "Tasks", "solved with which weights"),
    ("step", "Step", "the rows that moved it"),
)
"""Pages about the run that is shown, with their contents."""
RUNNING = (RunDirectoryState.RUNNING, RunDirectoryState.CHANGING)


def show() -> None:
    """Shows the page."""
    st.title("Runs", anchor=False)
    live_part(_list, REFRESH_SECONDS)()


def _list() -> None:
    context = studio_context()
    try:
        entries = all_entries(context)
        remarks = list(missing_places(context.places))
    except (TrinityError, OSError) as error:
        show_problem(error)
        return
    address, page = _show_newest(context, entries)
    if entries:
        show_text(joined([pluralize(len(entries), "run"), *map(str, context.places)]))
    for sentence in remarks:
        show_text(sentence)
    if not entries:
        show_text(EMPTY)
        return
    picked = show_table(
        "Runs",
        COLUMNS,
        [entry_row(entry) for entry in entries],
        key="runs",
        empty=EMPTY,
        selectable=True,
    )
    if page or picked is not None:
        _go_to(page or "run", picked or address)


def _show_newest(context: StudioContext, entries: Sequence[RunEntry]) -> tuple[str, str]:
    """Shows the result of the first run that has one; returns its address, and a chosen page."""
    for entry in entries:
        found = entry.highlight
        if found is None and entry.state in RUNNING:
            found = of_history(view_entry(context, entry).history)
        if found is not None:
            result = _overview()(
                data=_overview_data(entry, found), key="overview", on_picked_change=lambda: None
            )
            picked = getattr(result, "picked", None)
            return entry.address, picked if picked in {name for name, *_ in LINKS} else ""
    return "", ""


def _overview_data(entry: RunEntry, found: Highlight) -> dict[str, object]:
    kept = best_model(entry.directory, found.stage)
    facts = [*found.facts, *([("best model", str(kept.path))] if kept else [])]
    drawn = " and, thin, the mean reward of each step" if found.rewards else ""
    return {
        "links": LINKS,
        "run": one_line(entry.label),
        "state": entry.state.value,
        "title": found.title,
        "gain": found.gain,
        "claim": one_line(found.claim),
        "facts": tuple((name, one_line(value)) for name, value in facts),
        "summary": one_line(f"{found.title}: {found.claim}"),
        "key": one_line(f"{found.score} on {found.taskset}{drawn}"),
        "percent": found.score == "accuracy",
        "best": found.best.version,
        "points": tuple((at.version, at.mean, at.standard_error) for at in found.evaluations),
        "rewards": found.rewards,
        "dark": st.context.theme.type == "dark",
    }


@functools.cache
def _overview() -> Callable[..., object]:
    return component("trinity_overview", "overview", OVERVIEW_HTML)


def _go_to(page: str, address: str) -> None:
    show_page = importlib.import_module(f"trinity.studio.pages.{page}").show
    st.switch_page(
        st.Page(show_page, title=page.title(), url_path=page), query_params={RUN: address}
    )


def entry_row(entry: RunEntry) -> Row:
    """Converts a run to a row of the table."""
    total = f" / {entry.total_steps:,}" if entry.total_steps else ""
    found = entry.highlight
    return Row(
        id=entry.address,
        cells=(
            entry.label,
            entry.tenant,
            entry.state.value,
            entry.stage,
            "" if entry.step is None else f"{entry.step:,}{total}",
            " ".join(f"{at.mean:.4g}" for at in found.evaluations) if found else "",
            found.line if found else "",
            number_text(entry.reward),
            entry.began.strftime("%Y-%m-%d %H:%M") if entry.began else "",
            entry.reason,
        ),
    )
