"""The page Runs: all runs below the places that Studio looks into."""

import streamlit as st

from trinity.errors import TrinityError
from trinity.studio.context import studio_context
from trinity.studio.pages.common import RUN, all_entries, live_part
from trinity.studio.plain_text import joined, number_text
from trinity.studio.runs import RunEntry, missing_places
from trinity.studio.widgets import Column, Row, show_problem, show_table, show_text

REFRESH_SECONDS = 3.0
COLUMNS = (
    Column("run"),
    Column("tenant"),
    Column("state", "state"),
    Column("stage"),
    Column("step", "number"),
    Column("reward", "number"),
    Column("result"),
    Column("began"),
    Column("remark", "text"),
)
EMPTY = "No run was started here yet. One appears as soon as `trinity run` has read its file."


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
    show_text(joined([_number_of(len(entries)), *map(str, context.places)]))
    for sentence in remarks:
        show_text(sentence)
    picked = show_table(
        "Runs",
        COLUMNS,
        [_row(entry) for entry in entries],
        key="runs",
        empty=EMPTY,
        selectable=True,
    )
    if picked is not None:
        _go_to(picked)


def _number_of(runs: int) -> str:
    return "1 run" if runs == 1 else f"{runs:,} runs"


def _go_to(address: str) -> None:
    from trinity.studio.pages import run

    st.switch_page(st.Page(run.show, title="Run", url_path="run"), query_params={RUN: address})


def _row(entry: RunEntry) -> Row:
    total = f" / {entry.total_steps:,}" if entry.total_steps else ""
    return Row(
        id=entry.address,
        cells=(
            entry.label,
            entry.tenant,
            entry.state.value,
            entry.stage,
            "" if entry.step is None else f"{entry.step:,}{total}",
            number_text(entry.reward),
            entry.result,
            entry.began.strftime("%Y-%m-%d %H:%M") if entry.began else "",
            entry.reason,
        ),
    )
