"""Writes a tree of values as YAML, with comments at the ends of lines."""

from collections.abc import Callable, Iterator
from typing import Any

import yaml

Comment = Callable[[str], str | None]
WIDEST = 60


def yaml_text(tree: dict[str, Any], comment: Comment = lambda _: None) -> str:
    """The text; `comment` is asked for each dotted key."""
    lines = list(_mapping(tree, "", "", comment))
    widths = [len(text) for text, said in lines if said and len(text) <= WIDEST]
    width = max(widths, default=0)
    return "\n".join(f"{text:{width}}  # {said}" if said else text for text, said in lines)


Line = tuple[str, str | None]


def _mapping(tree: dict[str, Any], key: str, indent: str, comment: Comment) -> Iterator[Line]:
    for name, value in tree.items():
        inner = f"{key}.{name}" if key else str(name)
        yield from _entry(f"{indent}{scalar(name)}:", value, inner, f"{indent}  ", comment)


def _entry(head: str, value: Any, key: str, indent: str, comment: Comment) -> Iterator[Line]:
    if isinstance(value, dict) and value:
        yield head, None
        yield from _mapping(value, key, indent, comment)
    elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
        yield head, None
        for position, item in enumerate(value):
            yield from _item(item, f"{key}[{position}]", indent, comment)
    else:
        yield f"{head} {scalar(value)}", comment(key)


def _item(item: Any, key: str, indent: str, comment: Comment) -> Iterator[Line]:
    if not isinstance(item, dict) or not item:
        yield f"{indent}- {scalar(item)}", comment(key)
        return
    lines = _mapping(item, key, f"{indent}  ", comment)
    for position, (text, said) in enumerate(lines):
        is_first = position == 0
        yield (f"{indent}- {text[len(indent) + 2 :]}" if is_first else text), said


def scalar(value: Any) -> str:
    """A value on one line."""
    text: str = yaml.safe_dump(value, default_flow_style=True, width=10**6, allow_unicode=True)
    return text.removesuffix("\n").removesuffix("\n...").strip()
