"""The page Tasks: how often each task is solved, version by version."""

import streamlit as st

from trinity.studio.experiences import list_experiences
from trinity.studio.pages.common import (
    PAGE,
    StagePage,
    keep_choice,
    place_of,
    rows_of_page,
    show_choice,
    show_prompt,
    show_response,
    show_stage,
    turn_pages_of,
)
from trinity.studio.pages.scored import (
    DONE_FIRST,
    TASK,
    ask_cached,
    chosen_question,
    show_link_to_experiences,
)
from trinity.studio.plain_text import joined, number_text
from trinity.studio.scores import (
    HeatMap,
    ScoreQuestion,
    ScoreTable,
    TaskHistory,
    TaskOrder,
    ordered_tasks,
    short_names,
    summary_of,
)
from trinity.studio.widgets import Column, Row, show_text

ORDERS = tuple(order.value for order in TaskOrder)
ORDER = "order"
TABLE_HEIGHT = 420
NUM_ANSWERS = 8
FIXED_COLUMNS = (
    Column("Task", "number"),
    Column("Drawn", "number"),
    Column("Passed", "number"),
    Column("Mean score", "number"),
    Column("Flips", "number"),
)
LEGEND = (
    "Cells: runs that passed with these weights. Empty: not drawn; ?: drawn, and no run has a "
    "score. A flip is a change between fewer than half of the runs and more."
)
OF_DRAWINGS = "Most tasks were drawn with few versions (v): each has its own in its row."
NO_TASKS = "No task is in this list. Tasks come with the first finished runs."


def show() -> None:
    """Shows the page."""
    st.title("Tasks", anchor=False)
    show_stage(_show_tasks, empty=NO_TASKS, forget=(TASK, PAGE), with_history=True)


def _show_tasks(page: StagePage) -> None:
    question = chosen_question(page.viewed.history.stages.get(page.name), with_trained=True)
    if question is None:
        show_text(DONE_FIRST)
        return
    table = ask_cached(page, question)
    _show_summary(table, question)
    start = place_of(ORDERS, ORDER)
    order: str = st.radio("Order", ORDERS, index=start, horizontal=True)
    keep_choice(ORDER, ORDERS, start, ORDERS.index(order))
    tasks = ordered_tasks(table, TaskOrder(order))
    shown = rows_of_page(tasks)
    heat, names = HeatMap.of(table.versions, shown), short_names(table.tasks)
    named = show_choice(
        "Tasks",
        [*FIXED_COLUMNS, *(Column(label, "heat") for label in heat.labels)],
        [task_cells(task, names[task.name], heat) for task in shown],
        parameter=TASK,
        key="tasks",
        empty=NO_TASKS,
        height=TABLE_HEIGHT,
    )
    if shown:
        show_text(LEGEND if heat.spans else f"{OF_DRAWINGS} {LEGEND}")
    turn_pages_of(tasks)
    if chosen := next((task for task in table.tasks if task.name == named), None):
        _show_task(page, question, chosen)


def _show_summary(table: ScoreTable, question: ScoreQuestion) -> None:
    if not table.tasks:
        return
    summary = summary_of(table)
    covered = ""
    if table.is_cut:
        covered = f"the newest {table.num_draws_read:,} of {table.num_draws:,} draws"
    show_text(joined([summary.line, covered]))
    if summary.num_tasks and summary.num_never == summary.num_tasks:
        show_text(
            f"No run reached {question.pass_score:g}: lower the score that passes, if these runs "
            "should count as solved."
        )


def task_cells(task: TaskHistory, name: str, heat: HeatMap) -> Row:
    """Converts a task to a row of the heat map."""
    total, cells = task.total, heat.cells(task)
    return Row(
        id=task.name,
        cells=(
            name,
            f"{task.num_draws:,}",
            f"{total.num_passed:,} of {total.num_scored:,}",
            number_text(total.mean),
            f"{task.num_flips:,}",
            *(text for text, _ in cells),
        ),
        levels=tuple(level for _, level in cells),
    )


def _show_task(page: StagePage, question: ScoreQuestion, task: TaskHistory) -> None:
    conditions = [f"task={task.name}", *(["kind=eval"] if question.taskset else [])]
    rows = page.wait_for(
        list_experiences(page.services, page.key, conditions, page_rows=NUM_ANSWERS)
    ).rows
    st.subheader("Task", divider="gray", anchor=False)
    show_text(joined([task.name, f"drawn {task.num_draws:,} times"]))
    show_link_to_experiences(conditions, page.name)
    if not rows:
        show_text("Its experiences are not stored any more.")
        return
    show_prompt(rows)
    for row in rows:
        facts = [f"weights {row.versions}", f"run {row.run}", f"reward {number_text(row.reward)}"]
        show_response(row, [*facts, row.state, row.reason])
