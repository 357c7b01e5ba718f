"""Finds where the Python of a repository reads a configuration, by its syntax tree.

Nothing of the repository is imported.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

_SKIPPED = {"tests", "test", "docs", "node_modules", "site-packages", "build", ".venv", ".git"}
_MOST_BYTES = 2**20
_TOP_FILES = (".git", "setup.py", "pyproject.toml")
_PASSED_ON = re.compile(r"kwargs|override|runtime_env|env_vars")
"""Sections that are passed on whole, so that code elsewhere may read their keys."""
SWITCHES = ("enable", "enabled")


@cache
def python_files(folder: Path) -> dict[str, str]:
    """The texts of a repository's Python files by their paths, without its tests."""
    top = top_of(folder)
    texts: dict[str, str] = {}
    for path in sorted(top.rglob("*.py")):
        name = path.relative_to(top)
        if _SKIPPED.isdisjoint(name.parts) and path.is_file() and path.stat().st_size < _MOST_BYTES:
            texts[str(name)] = path.read_text(encoding="utf-8", errors="replace")
    return texts


def top_of(folder: Path) -> Path:
    """The repository around a folder that holds veRL; the folder itself without one."""
    marked = (above for above in (folder, *folder.parents) if (above / ".git").exists())
    return next(marked, folder)


@cache
def where_read(folder: Path, key: str) -> str:
    """Returns `file.py:12`, where the last word of a key is read; empty if no code reads it.

    Keys of a section that is passed on whole count as read in the file that names the section.
    """
    return next((f"{name}:{line}" for name, line in lines_read(folder, key).items()), "")


@cache
def lines_read(folder: Path, key: str) -> dict[str, int]:
    """The files that read the last word of a key, each with its first line that does."""
    *above, word = key.split(".")
    passed = next((name for name in above if _PASSED_ON.search(name)), "")
    found: dict[str, int] = {}
    for name, text in python_files(folder).items():
        for wanted in (word, passed):
            if wanted and wanted in text and (line := _lines_of_words(text).get(wanted)):
                found.setdefault(name, line)
    return found


@cache
def is_switch(folder: Path, key: str) -> bool:
    """True for `section.enable` if some code asks `if config.section.enable`."""
    *_, section, word = ("", *key.split("."))
    asked = re.compile(rf"\b(if|and|or|not)\b[^\n]*\b{re.escape(section)}\b\W+(get\W+)?{word}\b")
    texts = python_files(folder).values()
    return word in SWITCHES and any(section in text and asked.search(text) for text in texts)


@cache
def _lines_of_words(text: str) -> dict[str, int]:
    """Each attribute, name, argument and text of a file, with its first line."""
    lines: dict[str, int] = {}
    try:
        nodes = list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError, RecursionError):  # of another Python: all words count
        for number, line in enumerate(text.splitlines(), 1):
            lines |= {word: lines.get(word, number) for word in re.findall(r"\w+", line)}
        return lines
    for node in nodes:
        number = getattr(node, "lineno", 1)
        for word in words_of(node):
            lines[word] = min(number, lines.get(word, number))
    return lines


def words_of(node: ast.AST) -> Iterator[str]:
    """The attribute, name, argument or parts of a text that a node of the tree is."""
    match node:
        case ast.Attribute(attr=name) | ast.Name(id=name) | ast.arg(arg=name):
            yield name
        case ast.keyword(arg=str(name)):
            yield name
        case ast.Constant(value=str(text)) if len(text) < 200:
            yield from text.split(".")
