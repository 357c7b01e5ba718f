"""Parts of the pages on scores: the question, and an answer that is kept while it is looked at."""

from collections.abc import Sequence

import streamlit as st

from trinity.run.progress.view import shown_order
from trinity.studio.history import StageHistory
from trinity.studio.pages.common import (
    PAGE,
    StagePage,
    go_to_experiences,
    keep_choice,
    place_of,
    remembered,
)
from trinity.studio.plain_text import plain_text
from trinity.studio.scores import MANY_SECONDS, REWARD, ScoreQuestion, ScoreTable, ask_scores

TASK, TASKSET, METRIC, PASS_SCORE = "task", "taskset", "metric", "pass"
"""Parameters of the address."""
TRAINED = "trained on"
KEPT = "_scores"
"""Key of the session: the last answer with its question."""
DONE_FIRST = (
    "No evaluation has ended yet. Set `buffer.explorer_input.eval_tasksets` and "
    "`explorer.eval_interval` to have some."
)


def chosen_question(history: StageHistory | None, *, with_trained: bool) -> ScoreQuestion | None:
    """Shows the choice of a question; returns None without a taskset to choose.

    `with_trained` offers the tasks trained on, too.
    """
    evaluated = list(history.evaluations) if history is not None else []
    tasksets = [TRAINED] * with_trained + evaluated
    if not tasksets:
        return None
    names = metric_names(history)
    which, score, passing = st.columns([2, 2, 1])
    first_taskset, first_metric = place_of(tasksets, TASKSET), place_of(names, METRIC)
    taskset: int = which.selectbox(
        "Tasks",
        range(len(tasksets)),
        index=first_taskset,
        format_func=lambda place: plain_text(tasksets[place]),
    )
    metric: int = score.selectbox(
        "Score",
        range(len(names)),
        index=first_metric,
        format_func=lambda place: plain_text(names[place]),
    )
    pass_score: float = passing.number_input(
        "Passes from", value=_number(st.query_params.get(PASS_SCORE, "")), step=0.1, format="%g"
    )
    keep_choice(TASKSET, tasksets, first_taskset, taskset, (PAGE, TASK))
    keep_choice(METRIC, names, first_metric, metric, (PAGE, TASK))
    st.query_params[PASS_SCORE] = f"{pass_score:g}"
    is_trained = with_trained and taskset == 0
    return ScoreQuestion(
        taskset="" if is_trained else tasksets[taskset],
        metric=names[metric],
        pass_score=pass_score,
    )


def metric_names(history: StageHistory | None) -> list[str]:
    """Returns the names of scores: `accuracy` first where it is measured, then the reward."""
    return shown_order([*(history.scores if history is not None else ()), REWARD])


def ask_cached(page: StagePage, question: ScoreQuestion) -> ScoreTable:
    """Returns the answer, from the session unless samples were stored or changed since.

    Raises: TrinityError, TimeoutError.
    """

    def answer() -> ScoreTable:
        with st.spinner("Scores are being read."):
            return page.wait_for(ask_scores(page.services, page.key, question), MANY_SECONDS)

    return remembered(KEPT, (page.identity, page.counts, question), answer)


def show_link_to_experiences(conditions: Sequence[str], stage: str) -> None:
    """Shows a button to the experiences that satisfy conditions."""
    if st.button("All its experiences"):
        go_to_experiences(where=" ".join(conditions), stage=stage)


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        return 1.0
    return value if abs(value) < 1e9 else 1.0
