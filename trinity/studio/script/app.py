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

STYLE = """<style>
[data-testid='stMainBlockContainer'] {padding-top: 4rem; max-width: 90rem; margin: 0 auto;}
.trinity-text {white-space: pre-wrap; overflow-wrap: anywhere; unicode-bidi: isolate;}
.trinity-text code {font-size: 0.875em; padding: 0.1em 0.3em; background: #8882;}
.trinity-text small {opacity: 0.75; margin-left: 0.5rem;}
.trinity-box {
  border-radius: 0.5rem; padding: 0.6rem 0.9rem; border-left: 0.25rem solid var(--ink);
  background: color-mix(in srgb, var(--ink) 9%, transparent);
}
.trinity-good {--ink: #19796d;}
.trinity-bad {--ink: #b3261e;}
.trinity-warning {--ink: #b3591a;}
.trinity-note {--ink: #2a6fae;}
</style>"""
"""Streamlit leaves a wide empty band below a menu at the top. Texts: see `widgets.py`."""


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
