"""Text that others wrote reaches a page as text: never as Markdown, HTML or code.

Streamlit reads Markdown in labels, errors, help and captions. Only literals and constants of
this project may stand there; all else goes through `st.text`, `st.code`, `escaped_html` or own
components, which set it by `textContent`.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.subtests import as_subtests
from trinity.studio.widgets import escaped_html

STUDIO = Path(__file__).parents[3] / "trinity" / "studio"
PLAIN = {"text", "code"}
"""Calls whose first argument Streamlit shows as it is."""
READS_MARKUP = frozenset(
    """
    title header subheader caption error warning info success toast badge metric button
    download_button link_button page_link checkbox toggle radio selectbox multiselect pills
    segmented_control slider select_slider text_input text_area number_input date_input
    file_uploader expander popover tabs status spinner progress form_submit_button
    set_page_config chat_input chat_message dialog feedback data_editor html
    """.split()  # noqa: SIM905  # a list of forty lines would hide the rest
)
BANNED = {
    "markdown",
    "write",
    "write_stream",
    "latex",
    "iframe",
    "exception",
    "graphviz_chart",
}
MARKDOWN_KEYWORDS = {"label", "help", "caption", "captions", "body", "title", "icon", "text"}
MARKDOWN_OPTIONS = {"radio", "pills", "segmented_control", "multiselect"}
"""Their options are read as Markdown, too; those of a selectbox are not."""
LOGS = {"_limited"}
"""Names of loggers: what is written to a log is not read as Markdown."""
OF_THE_SCHEMA = {"label_of", "help_of"}
"""Functions whose text is that of the configuration's schema."""
ESCAPING = {"escaped_html", "escaped_figures"}
PAGES = sorted(STUDIO.rglob("*.py"))


def is_own_text(node: ast.expr) -> bool:
    """True for a literal, a constant by its name in capitals, and lists of these."""
    if isinstance(node, ast.Constant):
        return True
    if isinstance(node, ast.Name):
        return node.id.isupper()
    if isinstance(node, ast.List | ast.Tuple):
        return all(map(is_own_text, node.elts))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return node.func.id in OF_THE_SCHEMA | ESCAPING
    if isinstance(node, ast.IfExp):
        return is_own_text(node.body) and is_own_text(node.orelse)
    return False


def hazards(source: str) -> Iterator[str]:
    """Yields each call that gives others' text to something that reads Markdown."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        name, where = node.func.attr, f"line {node.lineno}"
        is_streamlit = isinstance(node.func.value, ast.Name)
        if name in BANNED and is_streamlit and node.func.value.id == "st":  # type: ignore[attr-defined]
            yield f"{where}: {name}"
        if any(keyword.arg == "unsafe_allow_html" for keyword in node.keywords):
            yield f"{where}: unsafe_allow_html"
        if name == "code" and not any(k.arg == "language" for k in node.keywords):
            yield f"{where}: code without language=None"
        if name in PLAIN:
            yield from (f"{where}: {k.arg}" for k in node.keywords if k.arg == "help")
        if name not in READS_MARKUP or (is_streamlit and node.func.value.id in LOGS):  # type: ignore[attr-defined]
            continue
        shown = node.args[:2] if name in MARKDOWN_OPTIONS else node.args[:1]
        shown += [k.value for k in node.keywords if k.arg in MARKDOWN_KEYWORDS]
        shown += [k.value for k in node.keywords if k.arg == "options" and name in MARKDOWN_OPTIONS]
        yield from (f"{where}: {name}({ast.unparse(a)})" for a in shown if not is_own_text(a))


@as_subtests("path", PAGES)
def test_only_own_text_is_read_as_markup(path: Path) -> None:
    assert list(hazards(path.read_text())) == []


@as_subtests(
    "line",
    [
        "st.error(str(error))",
        "st.error(f'no {name}')",
        "column.caption(row.response)",
        "st.markdown('literal')",
        "st.write(text)",
        "st.html(f'<b>{text}</b>')",
        "st.button(label=name)",
        "st.text_input('Name', help=describe(field))",
        "st.text('ok', help=name)",
        "st.code(text)",
        "st.radio('Run', names)",
        "st.radio('Run', options=names)",
        "st.tabs([name])",
        "st.expander('a' + name)",
        "st.subheader(upper)",
        "st.container().warning(why)",
        "st.foo('x', unsafe_allow_html=True)",
    ],
)
def test_the_check_finds_each_way_in(line: str) -> None:
    """The control of the check."""
    assert len(list(hazards(line))) == 1


def test_a_text_in_a_box_is_no_markup() -> None:
    hostile = "<img src=x onerror=alert(1)>&lt;\"'\u202e `<b>x</b>` `\n`"
    assert escaped_html(hostile, "bad") == (
        '<div class="trinity-text trinity-box trinity-bad" role="alert">'
        "&lt;img src=x onerror=alert(1)&gt;&amp;lt;&quot;&#x27;\\u202e "
        "<code>&lt;b&gt;x&lt;/b&gt;</code> `\n`</div>"
    )


@pytest.mark.parametrize("path", sorted(STUDIO.rglob("*.js")), ids=lambda path: path.name)
def test_components_set_text_alone(path: Path) -> None:
    source = path.read_text()
    assert "createElement" not in source or "textContent" in source or "add(" in source
    ways = r"innerHTML|outerHTML|insertAdjacent|document\.write|eval|Function|srcdoc|\.href|\.src\b"
    assert re.search(ways, source) is None


def test_components_read_no_key_that_others_name() -> None:
    """A row's id is a value, never the name of a property or of a selector."""
    for path in STUDIO.rglob("*.js"):
        assert re.search(r"querySelector\((?!\"\.[a-z]+\"\))", path.read_text()) is None
