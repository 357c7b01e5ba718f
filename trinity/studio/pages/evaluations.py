"""The page Evaluations: which problems were won and lost between two versions."""

from collections.abc import Sequence
from dataclasses import replace

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
    Outcome,
    TaskPair,
    heat_level,
    heat_text,
    pairs_line,
    pairs_of,
    short_names,
)
from trinity.studio.widgets import Column, Row, show_text

BEFORE, AFTER, SHOWN = "before", "after", "show"
"""Parameters of the address."""
CHANGED, ALL = "won and lost", "all"
CHOICES = (CHANGED, Outcome.LOST.value, Outcome.WON.value, Outcome.UNSOLVED.value, ALL)
TABLE_HEIGHT = 420
NUM_ANSWERS = 4
NO_PAIRS = "No task is in this list."


def show() -> None:
    """Shows the page."""
    st.title("Evaluations", anchor=False)
    show_stage(_show_pairs, empty=DONE_FIRST, forget=(TASK, PAGE), with_history=True)


def _show_pairs(page: StagePage) -> None:
    history = page.viewed.history.stages.get(page.name)
    question = chosen_question(history, with_trained=False)
    if question is None or history is None:
        show_text(DONE_FIRST)
        return
    versions = sorted(history.evaluations.get(question.taskset, ()))
    if len(versions) < 2:
        show_text("Only one version was evaluated on this taskset. Two are compared here.")
        return
    before, after = _chosen_versions(versions)
    table = ask_cached(page, replace(question, versions=(before, after)))
    pairs = pairs_of(table, before, after)
    show_text(pairs_line(pairs, before, after))
    if table.is_cut:
        show_text(
            f"Only {table.num_draws_read:,} of {table.num_draws:,} evaluated tasks are compared."
        )
    named = _show_table(pairs, before, after)
    if chosen := next((pair for pair in pairs if pair.task.name == named), None):
        _show_answers(page, chosen, (before, after))


def _chosen_versions(versions: Sequence[int]) -> tuple[int, int]:
    """Shows the choice of two versions: the first and the last one at the beginning."""
    names = [str(version) for version in versions]
    first, second = st.columns(2)
    start = place_of(names, BEFORE, 0), place_of(names, AFTER, len(names) - 1)
    before: int = first.selectbox(
        "From version", range(len(names)), index=start[0], format_func=lambda place: names[place]
    )
    after: int = second.selectbox(
        "To version", range(len(names)), index=start[1], format_func=lambda place: names[place]
    )
    keep_choice(BEFORE, names, start[0], before)
    keep_choice(AFTER, names, start[1], after)
    return versions[before], versions[after]


def _show_table(pairs: Sequence[TaskPair], before: int, after: int) -> str:
    """Shows the pairs; returns the task of the chosen one."""
    start = place_of(CHOICES, SHOWN)
    choice: str = st.radio("Show", CHOICES, index=start, horizontal=True)
    keep_choice(SHOWN, CHOICES, start, CHOICES.index(choice))
    kept = pairs_shown(pairs, choice)
    names = short_names(pair.task for pair in pairs)
    named = show_choice(
        "Pairs of evaluations",
        (
            Column("Task", "number"),
            Column("Outcome", "state"),
            Column(f"v{before}", "heat"),
            Column(f"v{after}", "heat"),
            Column(f"mean v{before}", "number"),
            Column(f"mean v{after}", "number"),
        ),
        [pair_cells(pair, names[pair.task.name]) for pair in rows_of_page(kept)],
        parameter=TASK,
        key="pairs",
        empty=NO_PAIRS,
        height=TABLE_HEIGHT,
    )
    turn_pages_of(kept)
    return named


def pairs_shown(pairs: Sequence[TaskPair], choice: str) -> list[TaskPair]:
    """Returns the pairs that a choice of the page shows."""
    if choice == ALL:
        return list(pairs)
    wanted = {Outcome.WON, Outcome.LOST} if choice == CHANGED else {Outcome(choice)}
    return [pair for pair in pairs if pair.outcome in wanted]


def pair_cells(pair: TaskPair, name: str) -> Row:
    """Converts a pair to a row of the table."""
    return Row(
        id=pair.task.name,
        cells=(
            name,
            pair.outcome.value,
            heat_text(pair.before),
            heat_text(pair.after),
            number_text(pair.before.mean),
            number_text(pair.after.mean),
        ),
        levels=(heat_level(pair.before), heat_level(pair.after), None, None),
    )


def _show_answers(page: StagePage, pair: TaskPair, versions: tuple[int, int]) -> None:
    """Shows the prompt, and the answers of both versions side by side."""
    conditions = [f"task={pair.task.name}", "kind=eval"]
    pages = [
        page.wait_for(
            list_experiences(
                page.services,
                page.key,
                [*conditions, f"explore_step={version}"],
                page_rows=NUM_ANSWERS,
            )
        )
        for version in versions
    ]
    st.subheader("Both answers", divider="gray", anchor=False)
    show_text(joined([pair.task.name, pair.outcome.value]))
    show_link_to_experiences(conditions, page.name)
    rows = [row for found in pages for row in found.rows]
    if not rows:
        show_text("Its experiences are not stored any more.")
        return
    show_prompt(rows)
    columns = st.columns(2)
    for column, version, found in zip(columns, versions, pages, strict=True):
        with column:
            show_text(f"version {version}")
            for row in found.rows:
                facts = [f"run {row.run}", f"reward {number_text(row.reward) or 'not recorded'}"]
                show_response(row, [*facts, row.end])
            if found.has_more:
                show_text(f"The first {len(found.rows)} are shown.")
