"""Parts of pages that take untrusted text: tables, problems, long texts.

Streamlit reads Markdown in most of its arguments, labels and errors included. Text that this
project has not written itself reaches a page by these functions, `st.text` and `st.code` only; a
test over the syntax tree of the pages checks that.
"""

import functools
import html
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import compress, repeat
from pathlib import Path
from typing import Literal

import streamlit as st

from trinity.studio.plain_text import one_line, plain_text

FOLDER = Path(__file__).with_name("components")
TABLE_HTML = '<div class="table"></div>'
ROW_PIXELS = 36
CODE = re.compile(r"`([^`\n]+)`")
BoxKind = Literal["good", "bad", "warning", "note"]
CellKind = Literal["text", "number", "code", "state", "wrap", "plain", "heat", "spark", "tree"]


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
    height: int = 0,
) -> str | None:
    """Shows a table of plain text; returns the id of a row that was picked just now.

    Columns that are empty in all rows are left out. Rows beyond `height` pixels are scrolled to.
    """
    filled = [any(cells) for cells in zip(*(row.cells for row in rows), strict=True)]
    data = {
        "name": name,
        "columns": [asdict(column) for column in compress(columns, filled or repeat(True))],
        "dark": st.context.theme.type == "dark",
        "rows": [_row(row, filled) for row in rows],
        "empty": empty,
        "selectable": selectable,
        "selected": selected,
    }
    is_high = 0 < height < ROW_PIXELS * len(rows)
    with st.container(height=height if is_high else "content", border=False):
        result = _table()(data=data, key=key, on_picked_change=_nothing)
    picked = getattr(result, "picked", None)
    return picked if picked in {row.id for row in rows} else None


def show_rows(
    name: str,
    columns: Sequence[Column],
    rows: Iterable[tuple[str, ...]],
    *,
    empty: str = "",
    key: str = "",
) -> None:
    """Shows a table of plain text in which no row can be picked."""
    shown = [Row(f"{place}", cells) for place, cells in enumerate(rows)]
    show_table(name, columns, shown, key=key or name, empty=empty)


def show_text(text: str) -> None:
    """Shows a text as it is; what stands in backquotes is set as code."""
    if "`" in text:
        st.html(escaped_html(text))
    else:
        st.text(plain_text(text))


def show_heading(title: str, remark: str) -> None:
    """Shows the title of a chart, with a remark in small letters."""
    st.html(escaped_html(title, remark=remark))


def show_box(kind: BoxKind, text: str) -> None:
    """Shows a text in a box, whose colour and sign say how things are."""
    st.html(escaped_html(text, kind))


def show_problem(error: Exception | str) -> None:
    """Shows what did not work, in the error's own words; the page stays usable."""
    show_box("bad", str(error) or type(error).__name__)


def escaped_html(text: str, kind: BoxKind | None = None, remark: str = "") -> str:
    """Returns the HTML of an untrusted text, in a box if there is a kind."""
    shown = CODE.sub(r"<code>\1</code>", html.escape(plain_text(text)))
    small = f" <small>{html.escape(plain_text(remark))}</small>" if remark else ""
    box = f" trinity-box trinity-{kind}" if kind else ""
    role = ' role="alert"' if kind == "bad" else ""
    return f'<div class="trinity-text{box}"{role}>{shown}{small}</div>'


def show_long_text(text: str) -> None:
    """Shows a text of many lines as it is."""
    st.code(plain_text(text), language=None, wrap_lines=True)


def _row(row: Row, filled: Sequence[bool]) -> dict[str, object]:
    levels = [*[None] * (len(row.cells) - len(row.levels)), *row.levels]
    return {
        "id": row.id,
        "cells": [one_line(cell) for cell in compress(row.cells, filled)],
        "levels": list(compress(levels, filled)),
    }


def _nothing() -> None:
    """Streamlit wants a callback for each trigger."""


@functools.cache
def _table() -> Callable[..., object]:
    return component("trinity_table", "table", TABLE_HTML)


def component(name: str, files: str, html: str) -> Callable[..., object]:
    """Registers a component, once a process: the script runs again at each click."""
    css = (FOLDER / f"{files}.css").read_text()
    js = "".join((FOLDER / f"{part}.js").read_text() for part in ("shared", files))
    made: Callable[..., object] = st.components.v2.component(name, html=html, css=css, js=js)

    def draw(*, data: Mapping[str, object], **others: object) -> object:
        # Streamlit loads pandas to see whether a list is one of its tables: 0.8 seconds.
        plain = {key: tuple(v) if isinstance(v, list) else v for key, v in data.items()}
        return made(data=plain, **others)

    return draw
