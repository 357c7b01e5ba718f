"""The page Run: learning curves and waits."""

import time
from collections.abc import Sequence
from typing import TypeAlias

import streamlit as st

from trinity.errors import TrinityError
from trinity.run.progress.figures import format_clock
from trinity.run.state import MemberReport, WorkReport, ask_work, state_of
from trinity.runtime.rpc.errors import answer_of
from trinity.studio.connection import OpenRun
from trinity.studio.context import ViewedRun, members_of
from trinity.studio.curves import (
    BETTER,
    GROUPS,
    HEIGHT,
    LEGEND_HEIGHT,
    MAX_CURVES,
    curve_chart,
    curve_rows,
    evaluation_charts,
    evaluation_rows,
    has_legend,
)
from trinity.studio.drawings import show_lanes
from trinity.studio.history import RunHistory, StageHistory
from trinity.studio.lanes import step_spans
from trinity.studio.pages.common import (
    REFRESH_SECONDS,
    RunPage,
    is_ready,
    live_part,
    open_page,
    show_waiting,
)
from trinity.studio.pages.run_log import show_logs
from trinity.studio.plain_text import joined, number_text, seconds_text, time_text
from trinity.studio.widgets import (
    Column,
    show_box,
    show_heading,
    show_long_text,
    show_problem,
    show_rows,
    show_text,
)

STOPPED = "The run is not going on. This is what it stored."
Members: TypeAlias = Sequence[MemberReport]
Work: TypeAlias = Sequence[WorkReport]
CHARTS_A_ROW = 3
NO_CURVES = "No step was trained yet. The curves appear with the first batch."
MEMBER_COLUMNS = (
    Column("Member"),
    Column("Address", "code"),
    Column("Stage"),
    Column("Doing now", "text"),
    Column("Weights version", "number"),
    Column("Last heard", "number"),
)
WAIT_COLUMNS = (
    Column("Who waits"),
    Column("What for"),
    Column("Reason", "wrap"),
    Column("Waiting", "number"),
    Column("Gives up in", "number"),
)
WORK_COLUMNS = (
    Column("Stage"),
    Column("Explore step", "number"),
    Column("Trained step", "number"),
    Column("Tasks to do", "number"),
    Column("Tasks in work", "number"),
    Column("Ready to train", "number"),
    Column("Last step", "number"),
)
EVENT_COLUMNS = (Column("Time (UTC)"), Column("Stage"), Column("Event", "wrap"))
CLOSED_COLUMNS = (
    Column("Began (UTC)"),
    Column("Member"),
    Column("Waited for"),
    Column("Reason", "wrap"),
    Column("Lasted", "number"),
)
MAX_CLOSED_WAITS = 100
NO_LANES = "Nothing was seen yet. Members of a running run appear within seconds."
NO_CLOSED = "No wait of a second or more has ended yet."
BEFORE_IT = "before the last that is known"
LAST_SEEN = "the last that is known"
"""The end of the lanes of a run that has stopped."""
VALUE_COLUMNS = (
    Column("Curve"),
    Column("Step or version", "number"),
    Column("Newest value", "number"),
)


def show() -> None:
    """Shows the page."""
    st.title("Run", anchor=False)
    page = open_page()
    if page is not None:
        live_part(_live, REFRESH_SECONDS)(page)
        live_part(show_logs)(page)


def _live(page: RunPage) -> None:
    """Shows everything that changes while the run goes on."""
    viewed = page.viewed
    viewed.connection.touch()
    if not viewed.history.stages and not is_ready(viewed, with_history=True):
        show_waiting(viewed)
        return
    try:
        services = page.services
        members, work = _state(page, services) if services.is_live else ((), ())
    except (TrinityError, TimeoutError) as error:
        show_problem(viewed.connection.state.detail or error)
        members, work = (), ()
    else:
        _show_verdict(page, services)
    _show_stages(viewed.history, work)
    _show_lanes(viewed, is_live=bool(members or work))
    if members or work:
        _show_live(members, work)
    _show_events(viewed.history)


def _state(page: RunPage, services: OpenRun) -> tuple[Members, Work]:
    members = page.viewed.members or page.wait_for(members_of(services))[0]
    work = page.viewed.work.get(
        services,
        lambda: page.wait_for(_work_of(services)),
        news=page.viewed.history.last_event,
    )
    return members, work


async def _work_of(services: OpenRun) -> tuple[WorkReport, ...]:
    answer = ask_work(services.buffer, services.tenant, services.experiment_id)
    return state_of(work=await answer_of(answer)).work or ()


def _show_verdict(page: RunPage, services: OpenRun) -> None:
    if not services.is_live:
        show_box("note", STOPPED)
        return
    try:
        verdict = page.viewed.verdict.get(
            services, lambda: page.wait_for(page.viewed.connection.diagnose())
        )
    except (TrinityError, TimeoutError, OSError) as error:
        show_problem(error)
        return
    lines = "\n".join((verdict.text, *verdict.notes))
    show_box("good" if verdict.is_healthy else "warning", lines)


def _show_stages(history: RunHistory, work: Work) -> None:
    stages = [stage for stage in history.stages.values() if stage.opened_millis]
    if not stages:
        show_text(NO_CURVES)
        return
    for place, stage in enumerate(reversed(stages)):
        with st.container(key=f"stage-{len(stages) - place}"):
            st.subheader("Stage", divider="gray", anchor=False)
            show_text(_stage_line(stage, work))
            _show_curves(stage)


def _stage_line(stage: StageHistory, work: Work) -> str:
    """Describes how far a stage is, and when it ends at this pace."""
    total = f" of {stage.total_steps:,}" if stage.total_steps else ""
    pace = next((row.step_seconds for row in work if row.stage == stage.name), 0.0)
    left = ""
    if pace and stage.total_steps > stage.last_step:
        left = f"{format_clock((stage.total_steps - stage.last_step) * pace)} left"
    return joined(
        [
            stage.name,
            f"step {stage.last_step:,}{total}",
            f"{seconds_text(pace)} a step" if pace else "",
            left,
            joined(f"{label} {share:.0%}" for label, share in stage.time_shares()),
        ]
    )


def _show_curves(stage: StageHistory) -> None:
    measured = [
        ("Evaluation", f"{name}: {BETTER}", chart) for name, chart in evaluation_charts(stage)
    ]
    curves = ((group, curve_chart(stage, group)) for group in GROUPS)
    charts = [*measured[:1], *((of.title, of.good, chart) for of, chart in curves if chart)]
    if not charts:
        show_text(NO_CURVES)
    for first in range(0, len(charts), CHARTS_A_ROW):
        row = charts[first : first + CHARTS_A_ROW]
        height = HEIGHT + LEGEND_HEIGHT * any(has_legend(chart) for *_, chart in row)
        for column, (title, good, chart) in zip(st.columns(CHARTS_A_ROW), row, strict=False):
            with column:
                show_heading(title, good)
                st.vega_lite_chart(chart, width="stretch", height=height)
    if len(stage.evaluations) > MAX_CURVES:
        show_text(
            f"{MAX_CURVES} of {len(stage.evaluations):,} tasksets are drawn; all stand in the "
            "table, and on the page Evaluations."
        )
    with st.expander("Newest values as a table"):
        values = evaluation_rows(stage)
        values += [row for group in GROUPS for row in curve_rows(stage, group)]
        rows = ((name, f"{step:,}", f"{value:.4g}") for name, step, value in values)
        key = f"values-{stage.name}"
        show_rows("Newest values", VALUE_COLUMNS, rows, key=key, empty=NO_CURVES)
    _show_samples(stage)


def _show_samples(stage: StageHistory) -> None:
    with st.expander("Newest samples"):
        if not stage.samples:
            show_text("No sample was shown yet. They come with evaluations.")
        for sample in stage.samples:
            show_text(joined(["reward", number_text(sample.reward) or "not recorded"]))
            show_long_text(sample.prompt)
            show_long_text(sample.response)


def _show_lanes(viewed: ViewedRun, *, is_live: bool) -> None:
    """Shows who did and waited for what, as a picture and as a table."""
    st.subheader("Who did what", anchor=False)
    stages = list(viewed.history.stages.values())
    known = [viewed.lanes.newest or 0.0, *(stage.last_millis / 1000 for stage in stages)]
    newest = time.time() if is_live else max(known) or time.time()
    steps = step_spans(stages, newest, is_live=is_live)
    ago = "ago" if is_live else BEFORE_IT
    show_lanes(
        "Members over time",
        viewed.lanes.shown(newest, ago=ago, steps=steps),
        key="lanes",
        empty=NO_LANES,
        end="now" if is_live else LAST_SEEN,
    )
    with st.expander("Waits that ended"):
        rows = (
            (
                time_text(int(span.begin * 1000)),
                viewed.lanes.name_of(span.lane),
                span.waits_for,
                span.text,
                seconds_text(span.seconds),
            )
            for span in viewed.lanes.closed_waits()[:MAX_CLOSED_WAITS]
        )
        show_rows("Waits that ended", CLOSED_COLUMNS, rows, empty=NO_CLOSED)


def _show_live(members: Members, work: Work) -> None:
    st.subheader("Members", anchor=False)
    rows: list[tuple[str, ...]] = [
        (
            member.role,
            member.address,
            member.stage,
            member.activity,
            "" if member.version is None else str(member.version),
            f"{seconds_text(member.silent_seconds)} ago",
        )
        for member in members
    ]
    show_rows("Members", MEMBER_COLUMNS, rows, empty="No member was heard of.")
    st.subheader("Waits", anchor=False)
    rows = [
        (
            wait.owner,
            wait.waits_for,
            wait.reason,
            seconds_text(wait.waited_seconds),
            seconds_text(wait.deadline_seconds) or "never",
        )
        for member in members
        for wait in member.waits
    ]
    show_rows("Waits", WAIT_COLUMNS, rows, empty="Nothing waits.")
    st.subheader("Work", anchor=False)
    rows = [
        (
            stage.stage,
            f"{stage.explore_step:,}",
            f"{stage.trained_step:,}",
            f"{stage.num_pending:,}",
            f"{stage.num_leased:,}",
            f"{stage.num_ready:,}",
            "none yet"
            if stage.step_age_seconds < 0
            else f"{seconds_text(stage.step_age_seconds)} ago",
        )
        for stage in work
    ]
    show_rows("Work", WORK_COLUMNS, rows, empty="No stage is open.")


def _show_events(history: RunHistory) -> None:
    with st.expander("Events"):
        rows = ((time_text(at.unix_millis), at.stage, at.text) for at in reversed(history.events))
        show_rows("Events", EVENT_COLUMNS, rows, empty="Nothing happened yet.")
