"""The script that Streamlit runs for each page and click: `trinity studio` names it."""

import streamlit as st

from trinity.studio.pages import (
    compare,
    configure,
    evaluations,
    experiences,
    run,
    runs,
    step,
    tasks,
    tasksets,
)

STYLE = "<style>[data-testid='stMainBlockContainer'] {padding-top: 1.5rem;}</style>"
"""Streamlit leaves a wide empty band below a menu at the top."""


def main() -> None:
    """Shows the menu and the page that the address names."""
    st.set_page_config(page_title="Trinity Studio", layout="wide")
    st.html(STYLE)
    pages = [
        st.Page(runs.show, title="Runs", url_path="runs", default=True),
        st.Page(run.show, title="Run", url_path="run"),
        st.Page(experiences.show, title="Experiences", url_path="experiences"),
        st.Page(tasks.show, title="Tasks", url_path="tasks"),
        st.Page(evaluations.show, title="Evaluations", url_path="evaluations"),
        st.Page(step.show, title="Step", url_path="step"),
        st.Page(compare.show, title="Compare", url_path="compare"),
        st.Page(tasksets.show, title="Tasksets", url_path="tasksets"),
        st.Page(configure.show, title="Configure", url_path="configure"),
    ]
    st.navigation(pages, position="top").run()


main()
