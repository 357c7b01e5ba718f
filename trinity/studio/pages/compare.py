"""The page Compare: curves of several runs in one chart, and what differs in their plans."""

from collections.abc import Sequence
from dataclasses import dataclass

import streamlit as st

from trinity.errors import TrinityError
from trinity.runtime.json_values import JsonObject
from trinity.studio.comparison import (
    MAX_COMPARED,
    MAX_DIFFERENCES,
    Axis,
    ComparedStage,
    ComparisonRow,
    compared_charts,
    comparison_row,
    differences,
    distinct_labels,
    plan_of,
)
from trinity.studio.connection import Phase
from trinity.studio.context import StudioContext, ViewedRun, studio_context
from trinity.studio.curves import HEIGHT, LEGEND_HEIGHT
from trinity.studio.pages.common import (
    LAST_RUN,
    REFRESH_SECONDS,
    STAGE,
    all_entries,
    choose_stage,
    live_part,
    place_of,
    show_waiting,
    view_entry,
)
from trinity.studio.pages.runs import COLUMNS, entry_row
from trinity.studio.plain_text import number_text
from trinity.studio.runs import RunEntry
from trinity.studio.widgets import Column, Row, show_problem, show_rows, show_table, show_text

COMPARED, AXIS = "compare", "over"
"""Parameters of the address."""
AXES = tuple(axis.value for axis in Axis)
PLANS = "_compared_plans"
"""Key of the session: plans by the services that gave them."""
CHARTS_A_ROW = 2
TABLE_HEIGHT = 240
HINT = "Choose runs in the table, at most four; choose one again to take it out."
NOTHING_YET = "None of these runs has trained a step yet. Curves appear with the first one."
NUMBER_COLUMNS = (
    Column("Run"),
    Column("Step", "number"),
    Column("Reward, last ten steps", "number"),
    Column("Hours", "number"),
    Column("Best evaluations", "wrap"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRun:
    """A run that was chosen, under a label that no other one has."""

    label: str
    viewed: ViewedRun


def show() -> None:
    """Shows the page."""
    st.title("Compare", anchor=False)
    context = studio_context()
    try:
        entries = all_entries(context)
        chosen = _choose(entries)
        labels = distinct_labels([entry.label for entry in chosen])
        runs = [
            ComparedRun(label=label, viewed=view_entry(context, entry))
            for label, entry in zip(labels, chosen, strict=True)
        ]
    except (TrinityError, TimeoutError, OSError) as error:
        show_problem(error)
        return
    if len(runs) < 2:
        show_text(HINT)
    if runs:
        axis = _chosen_axis()
        live_part(_compare, REFRESH_SECONDS)(context, runs, axis)


def _choose(entries: Sequence[RunEntry]) -> list[RunEntry]:
    """Shows the runs; returns the chosen ones, at first that of the page before."""
    last = st.session_state.get(LAST_RUN)
    named = st.query_params.get_all(COMPARED) or ([last] if last else [])
    by_address = {entry.address: entry for entry in entries}
    chosen = [name for name in dict.fromkeys(named) if name in by_address][:MAX_COMPARED]
    picked = show_table(
        "Runs to compare",
        (Column("Compared"), *COLUMNS),
        [_marked(entry_row(entry), chosen) for entry in entries],
        key="compared-runs",
        empty="No run was started here yet.",
        selectable=True,
        height=TABLE_HEIGHT,
    )
    if picked is not None:
        toggled = toggle(chosen, picked)
        if toggled != chosen:
            st.query_params[COMPARED] = toggled
            st.rerun()
        show_text(HINT)
    st.query_params[COMPARED] = chosen
    return [by_address[name] for name in chosen]


def toggle(chosen: Sequence[str], picked: str) -> list[str]:
    """Returns the choice with one more, or without one that was in it; a full one stays."""
    if picked in chosen:
        return [name for name in chosen if name != picked]
    return [*chosen, picked] if len(chosen) < MAX_COMPARED else list(chosen)


def _marked(row: Row, chosen: Sequence[str]) -> Row:
    """Adds whether the row's run was chosen."""
    return Row(id=row.id, cells=("✓" if row.id in chosen else "", *row.cells))


def _chosen_axis() -> Axis:
    axis: str = st.radio("Over", AXES, index=place_of(AXES, AXIS), horizontal=True)
    st.query_params[AXIS] = axis
    return Axis(axis)


def _compare(context: StudioContext, runs: Sequence[ComparedRun], axis: Axis) -> None:
    """Shows everything that changes while the runs go on."""
    for run in runs:
        run.viewed.connection.touch()
        if run.viewed.connection.state.phase is not Phase.OPEN:
            show_waiting(run.viewed, run.label)
    stages = _stages(runs)
    charts = list(compared_charts(stages, axis))
    if not charts:
        show_text(NOTHING_YET)
    for first in range(0, len(charts), CHARTS_A_ROW):
        columns = st.columns(CHARTS_A_ROW)
        for column, (title, chart) in zip(columns, charts[first:], strict=False):
            with column:
                show_text(title)
                st.vega_lite_chart(chart, width="stretch", height=HEIGHT + LEGEND_HEIGHT)
    rows = (number_cells(comparison_row(stage)) for stage in stages)
    show_rows("Runs in numbers", NUMBER_COLUMNS, rows, empty=NOTHING_YET)
    _show_differences(context, runs)


def _stages(runs: Sequence[ComparedRun]) -> list[ComparedStage]:
    """Shows the choice of a stage by its name, if there are several; returns it of each run."""
    names = list(
        dict.fromkeys(
            stage.name
            for run in runs
            for stage in run.viewed.history.stages.values()
            if stage.opened_millis
        )
    )
    if not names:
        return []
    name = names[place_of(names, STAGE, len(names) - 1)]
    if len(names) > 1:
        name = names[choose_stage(names, names.index(name))]
    return [
        ComparedStage(label=run.label, history=run.viewed.history.stages[name])
        for run in runs
        if name in run.viewed.history.stages
    ]


def number_cells(row: ComparisonRow) -> tuple[str, ...]:
    """Converts the numbers of a run to the cells of its row."""
    total = f" / {row.total_steps:,}" if row.total_steps else ""
    reward, hours = number_text(row.reward, 3), number_text(row.hours)
    return row.label, f"{row.step:,}{total}", reward, hours, row.best


def _show_differences(context: StudioContext, runs: Sequence[ComparedRun]) -> None:
    if len(runs) < 2:
        return
    st.subheader("What differs in their plans", divider="gray", anchor=False)
    try:
        known = {run.label: plan for run in runs if (plan := _plan(context, run)) is not None}
    except (TrinityError, TimeoutError) as error:
        show_problem(error)
        return
    if len(known) < 2:
        show_text("Plans are compared when two runs are open.")
        return
    found = differences(list(known.values()))
    columns = (Column("Key", "code"), *(Column(label, "wrap") for label in known))
    rows = ((difference.key, *difference.values) for difference in found[:MAX_DIFFERENCES])
    show_rows("What differs", columns, rows, empty="Nothing differs but names.")
    if len(found) > MAX_DIFFERENCES:
        show_text(f"The first {MAX_DIFFERENCES} of {len(found):,} differences are shown.")


def _plan(context: StudioContext, run: ComparedRun) -> JsonObject | None:
    """Returns the plan, asked once for each opening of the services; None while they are closed."""
    opened = run.viewed.connection.opened
    if opened is None:
        return None
    kept: dict[str, tuple[object, JsonObject]] = st.session_state.setdefault(PLANS, {})
    asked = (context.visitor().key, opened)
    if run.label not in kept or kept[run.label][0] != asked:
        kept[run.label] = (asked, context.wait_for(plan_of(opened)))
        while len(kept) > 2 * MAX_COMPARED:
            del kept[next(iter(kept))]
    return kept[run.label][1]
