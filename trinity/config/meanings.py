"""Descriptions of keys: the texts under the fields, read from the source on first use."""

import ast
import inspect
from functools import cache
from pathlib import Path

from trinity.config.section import Section


def meaning_of(section: type[Section], name: str) -> str:
    """The text under a field, taken from the most derived class that has one."""
    for declared in section.__mro__:
        if issubclass(declared, Section) and (text := _texts(declared).get(name)):
            return text
    return ""


@cache
def _texts(section: type[Section]) -> dict[str, str]:
    for node in _classes(inspect.getfile(section)):
        if node.name == section.__name__:
            return _texts_under_fields(node)
    return {}


@cache
def _classes(file: str) -> tuple[ast.ClassDef, ...]:
    tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    return tuple(node for node in tree.body if isinstance(node, ast.ClassDef))


def _texts_under_fields(node: ast.ClassDef) -> dict[str, str]:
    found = {}
    for field, after in zip(node.body, node.body[1:], strict=False):
        is_text = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and is_text:
            assert isinstance(after, ast.Expr)
            assert isinstance(after.value, ast.Constant)
            found[field.target.id] = " ".join(str(after.value.value).split())
    return found
