"""The tab Change of an experience: a form and its confirmation."""

import streamlit as st

from trinity.api.v1 import query_pb2
from trinity.errors import TrinityError
from trinity.run.conditions import parse_conditions
from trinity.studio.changes import (
    CHANGE_SECONDS,
    MAX_REASON_CHARS,
    Act,
    Wish,
    make_change,
    wish_of,
)
from trinity.studio.pages.common import StagePage
from trinity.studio.widgets import show_box, show_problem

ACTS = tuple(Act)
THIS_ONE, ALL_FOUND = "This experience", "All that satisfy the conditions above"
ASKED_KEY = "_change_asked"
"""The wish that waits for its second yes, with the stage and the experience it was made at."""
DONE_KEY = "_change_done"


def show_changes(page: StagePage, experience_id: str, conditions: list[str]) -> None:
    """Shows the form, and below it the question whether that is really meant."""
    if done := st.session_state.pop(DONE_KEY, None):
        show_box("good", done)
    asked = _form(page.name, experience_id, conditions)
    if asked is not None:
        _ask_again(page, asked, experience_id)
    _second_question(page, experience_id)


def _form(stage: str, experience_id: str, conditions: list[str]) -> Wish | None:
    """Returns the wish that was sent just now."""
    with st.form(f"change-{stage}", border=False):
        act: Act = st.selectbox("What", ACTS, format_func=str)
        whose = st.selectbox("Which", (THIS_ONE, ALL_FOUND) if conditions else (THIS_ONE,))
        reward = st.number_input("Reward", value=None, format="%g")
        reason = st.text_input("Reason", max_chars=MAX_REASON_CHARS)
        if not st.form_submit_button("Look what it would do"):
            return None
    try:
        wanted = query_pb2.ExperienceFilter(experience_ids=[experience_id])
        if whose == ALL_FOUND:
            wanted = parse_conditions(conditions)
        return wish_of(act, wanted, reason, reward)
    except TrinityError as error:
        st.session_state.pop(ASKED_KEY, None)
        show_problem(error)
        return None


def _ask_again(page: StagePage, wish: Wish, experience_id: str) -> None:
    try:
        would = _change(page, wish, is_dry_run=True)
    except (TrinityError, TimeoutError) as error:
        st.session_state.pop(ASKED_KEY, None)
        show_problem(error)
        return
    st.session_state[ASKED_KEY] = ((*page.identity, experience_id), wish, would)


def _second_question(page: StagePage, experience_id: str) -> None:
    """Asks for confirmation; drops a request that was made at another experience."""
    place, wish, would = st.session_state.get(ASKED_KEY, ((), None, ""))
    if wish is None or place != (*page.identity, experience_id):
        st.session_state.pop(ASKED_KEY, None)
        return
    show_box("warning", f"Really? {would}\nReason: {wish.reason}")
    yes, no, _ = st.columns([1, 1, 4])
    if no.button("No", width="stretch"):
        st.session_state.pop(ASKED_KEY, None)
        st.rerun()
    if yes.button("Yes, do it", width="stretch"):
        st.session_state.pop(ASKED_KEY, None)
        try:
            st.session_state[DONE_KEY] = _change(page, wish, is_dry_run=False)
        except (TrinityError, TimeoutError) as error:
            show_problem(error)
            return
        st.rerun()


def _change(page: StagePage, wish: Wish, *, is_dry_run: bool) -> str:
    allows_changes = page.context.options.allows_changes
    work = make_change(
        page.services, page.key, wish, is_dry_run=is_dry_run, allows_changes=allows_changes
    )
    return page.wait_for(work, CHANGE_SECONDS)
