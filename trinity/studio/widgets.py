"""Parts of pages that take untrusted text: tables, token strips, problems.

Streamlit reads Markdown in most of its arguments, labels and errors included. Text that this
project has not written itself reaches a page by these functions, `st.text` and `st.code` only; a
test over the syntax tree of the pages checks that.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import streamlit as st

from trinity.studio.conversation import ConversationTurn, is_folded, preview_of
from trinity.studio.experiences import ShownMessage
from trinity.studio.lanes import Lanes, ShownSpan
from trinity.studio.plain_text import one_line, plain_text, seconds_text
from trinity.studio.tokens import ShownToken, TokenColor, TokenStrip

FOLDER = Path(__file__).with_name("components")
TABLE_HTML = '<div class="table"></div>'
TOKENS_HTML = (
    '<div class="tokens"><div class="strip" role="listbox" aria-orientation="horizontal"></div>'
    '<dl class="facts" aria-live="polite"></dl></div>'
)
START_WORDS = {"now": "ago"}
BEFORE = "before"
LANES_HTML = (
    '<div class="lanes"><div class="rows" role="grid"></div>'
    '<dl class="facts" aria-live="polite"></dl></div>'
)
CONVERSATION_HTML = '<div class="conversation"></div>'
CellKind = Literal["text", "number", "code", "state", "wrap", "plain", "heat"]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table."""

    label: str
    kind: CellKind = "plain"


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a table: its id, which a pick returns, and its cells."""

    id: str
    cells: tuple[str, ...]
    levels: tuple[int | None, ...] = ()
    """Steps of the colour scale of the row's last cells, where their columns have colours."""


def show_table(
    name: str,
    columns: Sequence[Column],
    rows: Sequence[Row],
    *,
    key: str,
    empty: str,
    selectable: bool = False,
    selected: str = "",
) -> str | None:
    """Shows a table of plain text; returns the id of a row that was picked just now."""
    data = {
        "name": name,
        "columns": [asdict(column) for column in columns],
        "dark": st.context.theme.type == "dark",
        "rows": [_row(row) for row in rows],
        "empty": empty,
        "selectable": selectable,
        "selected": selected,
    }
    result = _table()(data=data, key=key, on_picked_change=_nothing)
    picked = getattr(result, "picked", None)
    return picked if picked in {row.id for row in rows} else None


def show_tokens(name: str, strip: TokenStrip, color: str, *, key: str) -> None:
    """Shows the tokens of a response."""
    palette = color if color in (TokenColor.SURPRISE, TokenColor.AGE) else TokenColor.SIGNED.value
    data = {
        "name": name,
        "palette": palette,
        "dark": st.context.theme.type == "dark",
        "tokens": [_token(token) for token in strip.tokens],
    }
    _tokens()(data=data, key=key)


def show_conversation(name: str, turns: Sequence[ConversationTurn], *, key: str) -> None:
    """Shows the messages of turns by their roles; long ones are opened by a click or by Enter."""
    data = {
        "name": name,
        "dark": st.context.theme.type == "dark",
        "turns": [
            {
                "head": one_line(turn.head),
                "note": one_line(turn.note),
                "messages": [_message(message) for message in turn.messages],
            }
            for turn in turns
        ],
    }
    _conversation()(data=data, key=key)


def show_lanes(name: str, lanes: Lanes, *, key: str, empty: str, end: str = "now") -> None:
    """Shows what members did and waited for, over the same time, up to `end`."""
    data = {
        "name": name,
        "dark": st.context.theme.type == "dark",
        "start": f"{seconds_text(lanes.window_seconds)} {START_WORDS.get(end, BEFORE)}",
        "end": end,
        "empty": empty,
        "lanes": [
            {"name": lane.name, "spans": [_span(span) for span in lane.spans]}
            for lane in lanes.lanes
        ],
    }
    _lanes()(data=data, key=key)


def show_problem(error: Exception | str) -> None:
    """Shows what did not work, in the error's own words; the page stays usable."""
    st.error("This did not work.")
    st.text(plain_text(str(error)) or type(error).__name__)


def show_long_text(text: str) -> None:
    """Shows a text of many lines as it is."""
    st.code(plain_text(text), language=None, wrap_lines=True)


def _row(row: Row) -> dict[str, object]:
    num_plain = len(row.cells) - len(row.levels)
    return {
        "id": row.id,
        "cells": [one_line(cell) for cell in row.cells],
        "levels": [*[None] * num_plain, *row.levels],
    }


def _token(token: ShownToken) -> dict[str, object]:
    return {
        "text": token.text,
        "part": token.is_part,
        "mask": token.is_chosen,
        "level": token.level,
        "clipped": token.is_clipped,
        "label": token.label,
        "breaks": "↵" in token.text,
        "facts": [list(fact) for fact in token.facts],
    }


def _message(message: ShownMessage) -> dict[str, object]:
    return {
        "role": one_line(message.role),
        "tokens": f"{message.num_tokens:,} tokens",
        "text": plain_text(message.text),
        "preview": one_line(preview_of(message)) if is_folded(message) else "",
        "folded": is_folded(message),
    }


def _span(span: ShownSpan) -> dict[str, object]:
    return {
        "id": span.id,
        "wait": span.is_wait,
        "left": span.left,
        "width": span.width,
        "label": span.label,
        "facts": [list(fact) for fact in span.facts],
    }


def _nothing() -> None:
    """Streamlit wants a callback for each trigger."""


@functools.cache
def _table() -> Callable[..., object]:
    return _component("trinity_table", "table", TABLE_HTML)


@functools.cache
def _conversation() -> Callable[..., object]:
    return _component("trinity_conversation", "conversation", CONVERSATION_HTML)


@functools.cache
def _lanes() -> Callable[..., object]:
    return _component("trinity_lanes", "lanes", LANES_HTML)


@functools.cache
def _tokens() -> Callable[..., object]:
    return _component("trinity_tokens", "tokens", TOKENS_HTML)


def _component(name: str, files: str, html: str) -> Callable[..., object]:
    """Registers a component, once a process: the script runs again at each click."""
    css = (FOLDER / f"{files}.css").read_text()
    js = (FOLDER / f"{files}.js").read_text()
    made: Callable[..., object] = st.components.v2.component(name, html=html, css=css, js=js)
    return made
