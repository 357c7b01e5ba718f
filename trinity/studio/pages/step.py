"""The page Step: the rows that moved a train step, the rows left out, and both distributions."""

from collections.abc import Sequence

import streamlit as st

from trinity.api.v1 import query_pb2
from trinity.studio.pages.common import (
    PAGE,
    PAGE_ROWS,
    StagePage,
    forget_parameters,
    go_to_experiences,
    keep_choice,
    named_number,
    place_of,
    rows_of_page,
    show_stage,
    turn_pages_of,
)
from trinity.studio.plain_text import joined, number_text, reward_text
from trinity.studio.scores import MANY_SECONDS
from trinity.studio.steps import (
    SHARES,
    Distribution,
    Generated,
    RowOrder,
    StepView,
    TrainedRow,
    distributions,
    generated_for,
    left_out,
    ordered_rows,
    step_view,
)
from trinity.studio.widgets import Column, Row, show_rows, show_table, show_text

STEP, ORDER = "step", "order"
"""Parameters of the address."""
ORDERS = tuple(order.value for order in RowOrder)
TABLE_HEIGHT = 360
NO_STEP = "No step has a batch yet. The first one comes when enough samples are ready."
ROW_COLUMNS = (
    Column("Row", "number"),
    Column("Task"),
    Column("Run", "number"),
    Column("Reward", "number"),
    Column("Advantage", "number"),
    Column("Used advantage", "number"),
    Column("Factor", "number"),
    Column("Mean ratio", "number"),
    Column("Version", "number"),
    Column("Tokens", "number"),
)
DATA_COLUMNS = (
    Column("Row", "number"),
    Column("Data row", "number"),
    Column("Data", "text"),
)
LEFT_OUT_COLUMNS = (Column("Samples", "number"), Column("State"), Column("Why", "wrap"))
DISTRIBUTION_COLUMNS = (
    Column("Quantity"),
    Column("Samples"),
    Column("Number", "number"),
    Column("Mean", "number"),
    *(Column(label, "number") for label in ("Least", "25 %", "Median", "75 %", "Most")),
)
METRIC_COLUMNS = (Column("Metric"), Column("Value", "number"))


def show() -> None:
    """Shows the page."""
    st.title("Step", anchor=False)
    show_stage(_show_step, empty=NO_STEP, forget=(STEP, PAGE))


def _show_step(page: StagePage) -> None:
    if not page.stage.recorded_step:
        show_text(NO_STEP)
        return
    step = _chosen_step(page.stage)
    view = page.wait_for(step_view(page.services, page.key, step), MANY_SECONDS)
    show_text(step_line(view))
    for change in view.changes:
        show_text(f"changed {change}")
    _show_rows(view, page.name)
    if view.samples:
        generated = page.wait_for(generated_for(page.services, view), MANY_SECONDS)
        _show_left_out(view, generated, page.name)
        _show_distributions(view, generated)
    _show_metrics(view)


def _chosen_step(stage: query_pb2.StoredStage) -> int:
    """Shows the choice of a step: the newest trained one at the beginning."""
    last = stage.recorded_step
    start = max(1, min(named_number(STEP, stage.trained_step or last), last))
    narrow, _ = st.columns([1, 3])
    step = narrow.number_input("Step", min_value=1, max_value=last, value=start, step=1)
    if step != start:
        forget_parameters((PAGE,))
    st.query_params[STEP] = str(step)
    return int(step)


def step_line(view: StepView) -> str:
    """Describes a step in one line."""
    before = "" if view.version_before is None else f"v{view.version_before}"
    after = "not published" if view.version_after is None else f"v{view.version_after}"
    times = f"trained {view.times_trained:,} times" if view.times_trained > 1 else ""
    if not view.times_trained:
        times = "not trained yet"
    return joined(
        [
            f"{view.num_rows:,} rows",
            explored_text(view),
            view.samples_from,
            f"trainer {view.incarnation}",
            times,
            f"weights {before} to {after}" if before else f"weights {after}",
        ]
    )


def explored_text(view: StepView) -> str:
    """Names the explore steps of a step; empty without samples."""
    steps = view.explore_steps
    if len(steps) < 2:
        return f"explore step {steps[0]}" if steps else ""
    return f"explore steps {steps[0]} to {steps[-1]}"


def _show_rows(view: StepView, stage: str) -> None:
    st.subheader("Rows of the batch", divider="gray", anchor=False)
    if view.data_rows:
        _show_data(view.data_rows)
        if not view.samples:
            return
    start = place_of(ORDERS, ORDER)
    order: str = st.radio("Order", ORDERS, index=start, horizontal=True)
    keep_choice(ORDER, ORDERS, start, ORDERS.index(order))
    rows = ordered_rows((row for row in view.rows if row.sample is not None), RowOrder(order))
    shown = rows_of_page(rows)
    picked = show_table(
        "Rows of the batch",
        ROW_COLUMNS,
        [cells for row in shown if (cells := row_cells(row)) is not None],
        key="rows",
        empty=NO_STEP,
        selectable=not view.samples_from,
        height=TABLE_HEIGHT,
    )
    turn_pages_of(rows)
    sample = next((row.sample for row in shown if f"{row.position}" == picked), None)
    if sample is not None:
        go_to_experiences(where=f"step={view.step}", sample=sample.id, stage=stage)


def row_cells(row: TrainedRow) -> Row | None:
    """Converts a row with a sample to a row of the table."""
    sample = row.sample
    if sample is None:
        return None
    return Row(
        id=f"{row.position}",
        cells=(
            f"{row.position:,}",
            sample.task,
            f"{sample.run}",
            reward_text(sample.reward, sample.shaped_reward),
            number_text(row.advantage, is_signed=True),
            number_text(row.trained_advantage, is_signed=True),
            number_text(row.weight),
            number_text(row.mean_ratio, 3),
            sample.versions,
            f"{sample.response_length:,}",
        ),
    )


def _show_data(rows: Sequence[TrainedRow]) -> None:
    listed = ((f"{row.position:,}", f"{row.row_index:,}", row.data) for row in rows[:PAGE_ROWS])
    show_rows("Rows of training data", DATA_COLUMNS, listed, empty=NO_STEP)
    if len(rows) > PAGE_ROWS:
        show_text(f"{PAGE_ROWS} of {len(rows):,} rows of training data are shown.")


def _show_left_out(view: StepView, generated: Generated, stage: str) -> None:
    st.subheader("Left out", divider="gray", anchor=False)
    groups = left_out(view, generated)
    total, missing = len(generated.samples), sum(group.count for group in groups)
    show_text(
        f"{explored_text(view).capitalize()} gave {total:,} samples; {total - missing:,} of them "
        "are in this batch."
    )
    if generated.is_cut:
        show_text("There are more: these are the newest.")
    picked = show_table(
        "Left out",
        LEFT_OUT_COLUMNS,
        [
            Row(f"{place}", (f"{group.count:,}", group.state, group.reason))
            for place, group in enumerate(groups)
        ],
        key="left-out",
        empty="Nothing was left out.",
        selectable=not view.samples_from,
    )
    if picked is not None:
        where = [groups[int(picked)].condition]
        if len(view.explore_steps) == 1:
            where.append(f"explore_step={view.explore_steps[0]}")
        go_to_experiences(where=" ".join(where), stage=stage)


def _show_distributions(view: StepView, generated: Generated) -> None:
    st.subheader("Generated and trained on", divider="gray", anchor=False)
    rows = map(distribution_cells, distributions(view, generated))
    show_rows("Generated and trained on", DISTRIBUTION_COLUMNS, rows, empty=NO_STEP)


def distribution_cells(known: Distribution) -> tuple[str, ...]:
    """Converts a distribution to the cells of its row."""
    assert len(known.quantiles) == len(SHARES)
    largest = max(map(abs, known.quantiles))
    mean = 0.0 if abs(known.mean) < 1e-9 * largest else known.mean  # a sum that is rounded
    numbers = (mean, *known.quantiles)
    return (
        known.quantity,
        known.of,
        f"{known.num_values:,}",
        *(f"{number:,.4g}" for number in numbers),
    )


def _show_metrics(view: StepView) -> None:
    with st.expander("Metrics of the step"):
        rows = ((name, f"{value:.6g}") for name, value in sorted(view.metrics.items()))
        show_rows("Metrics of the step", METRIC_COLUMNS, rows, empty="None was reported.")
