"""The script that Streamlit runs for each page and click: `trinity studio` names it."""

import importlib
from collections.abc import Callable

import streamlit as st

PAGES = (
    "runs",
    "run",
    "experiences",
    "tasks",
    "evaluations",
    "step",
    "compare",
    "tasksets",
    "configure",
)
"""The modules of the pages, in the order of the menu; the first one is shown at the start."""

STYLE = "<style>[data-testid='stMainBlockContainer'] {padding-top: 4rem;}</style>"
"""Streamlit leaves a wide empty band below a menu at the top."""


def _shower(name: str) -> Callable[[], None]:
    """Returns a function that shows a page; its module is imported when it is first shown."""

    def show() -> None:
        from trinity.studio.pages.common import in_turn

        in_turn(lambda: importlib.import_module(f"trinity.studio.pages.{name}").show())()

    return show


def main() -> None:
    """Shows the menu and the page that the address names."""
    st.set_page_config(page_title="Trinity Studio", layout="wide")
    st.html(STYLE)
    pages = [
        st.Page(_shower(name), title=name.title(), url_path=name, default=name == PAGES[0])
        for name in PAGES
    ]
    st.navigation(pages, position="top").run()


main()
