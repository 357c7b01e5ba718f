"""Line numbers of the keys of a YAML text."""

from collections.abc import Iterator
from dataclasses import dataclass

import yaml

_LOADER = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
_MERGE = "tag:yaml.org,2002:merge"


@dataclass(frozen=True, slots=True)
class Entry:
    """A key, or a position in a list."""

    key: str
    """Dotted, list positions in brackets."""
    line: int
    value: yaml.Node


def lines_of(text: str) -> dict[str, int]:
    """Key to line; empty for a text that is not YAML."""
    return {entry.key: entry.line for entry in entries_of(text)}


def entries_of(text: str) -> Iterator[Entry]:
    """Yields all entries of a text in order; none if the text is not YAML."""
    try:
        root = yaml.compose(text, Loader=_LOADER)
    except yaml.YAMLError:
        return
    if root is not None:
        yield from _walk(root, "")


def _walk(node: yaml.Node, key: str, around: tuple[yaml.Node, ...] = ()) -> Iterator[Entry]:
    if any(node is ancestor for ancestor in around):
        return  # an alias of a node that contains it
    inner = (*around, node)
    if isinstance(node, yaml.MappingNode):
        for name, value in sorted(node.value, key=lambda item: item[0].tag != _MERGE):
            if name.tag == _MERGE:
                yield from _walk(value, key, inner)
                continue
            child = f"{key}.{name.value}" if key else str(name.value)
            yield Entry(child, name.start_mark.line + 1, value)
            yield from _walk(value, child, inner)
    elif isinstance(node, yaml.SequenceNode):
        for position, value in enumerate(node.value):
            child = f"{key}[{position}]"
            yield Entry(child, value.start_mark.line + 1, value)
            yield from _walk(value, child, inner)
