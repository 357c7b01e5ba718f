"""On which line of a YAML text each key stands."""

from collections.abc import Iterator

import yaml


def lines_of(text: str) -> dict[str, int]:
    """Dotted key, list positions in brackets, to line; empty for a text that is no YAML."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError:
        return {}
    return dict(_walk(root, "")) if root is not None else {}


def _walk(node: yaml.Node, key: str) -> Iterator[tuple[str, int]]:
    if isinstance(node, yaml.MappingNode):
        for name, value in node.value:
            child = f"{key}.{name.value}" if key else str(name.value)
            yield child, name.start_mark.line + 1
            yield from _walk(value, child)
    elif isinstance(node, yaml.SequenceNode):
        for position, value in enumerate(node.value):
            child = f"{key}[{position}]"
            yield child, value.start_mark.line + 1
            yield from _walk(value, child)
