"""Reads and writes YAML: plain values, the line of each key, text with comments."""

import re
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import yaml

_BASE_LOADER: Any = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
_DATE = "tag:yaml.org,2002:timestamp"
_FLOAT = "tag:yaml.org,2002:float"

CommentOfKey = Callable[[str], str | None]
MAX_ALIGNED_WIDTH = 60
Line = tuple[str, str | None]
_MERGE = "tag:yaml.org,2002:merge"


class _Loader(_BASE_LOADER):  # type: ignore[misc]  # one of two classes, chosen at run time
    """YAML of configurations: `1e-5` is a number, a date is a text, and keys are unique."""

    yaml_implicit_resolvers: ClassVar[dict[str, list[tuple[str, re.Pattern[str]]]]] = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag != _DATE]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._checked: set[yaml.MappingNode] = set()

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Refuses a value that is not of its tag, such as `!!int abc`, with its place."""
        try:
            return super().construct_object(node, deep)
        except (AttributeError, LookupError, ValueError) as error:
            raise yaml.constructor.ConstructorError(
                None,
                None,
                f"`{node.value}` is not of the type that its tag gives: leave the tag out",
                node.start_mark,
            ) from error

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Rejects duplicate keys: YAML allows them, and would drop the first.

        Keys of different spelling may be the same: `1` and `true`, or `yes` and `on`. A map is
        checked only once, before `<<` merges keys of other maps into it.
        """
        if node not in self._checked:
            self._checked.add(node)
            self._refuse_twins(node)
        super().flatten_mapping(node)

    def _refuse_twins(self, node: yaml.MappingNode) -> None:
        seen: dict[Any, yaml.ScalarNode] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == _MERGE:
                continue
            value = self.construct_object(key)
            is_itself = isinstance(value, Hashable) and value == value  # NaN differs from itself
            if (first := seen.setdefault(value if is_itself else key.value, key)) is not key:
                raise yaml.constructor.ConstructorError(
                    None, None, _twice(first, key), key.start_mark
                )


def _twice(first: yaml.ScalarNode, second: yaml.ScalarNode) -> str:
    line = first.start_mark.line + 1
    if first.value == second.value:
        return f"the key `{second.value}` is given twice, first in line {line}: keep one of them"
    return (
        f"the keys `{first.value}` (line {line}) and `{second.value}` are the same to YAML: "
        "put them in quotes, or keep one of them"
    )


_Loader.add_implicit_resolver(
    _FLOAT, re.compile(r"[-+]?[0-9]+([.][0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def load_yaml(text: str) -> Any:
    """The text's value; raises yaml.YAMLError if it is not YAML, or if an alias is circular."""
    return _without_aliases(yaml.load(text, Loader=_Loader), ())


def _without_aliases(value: Any, around: tuple[int, ...]) -> Any:
    """Returns a copy without shared parts, so that each alias can be changed separately."""
    if id(value) in around:
        raise yaml.YAMLError("an alias leads back to what it stands in")
    inner = (*around, id(value))
    if isinstance(value, dict):
        return {key: _without_aliases(item, inner) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_aliases(item, inner) for item in value]
    return value


def yaml_text(tree: dict[str, Any], comment: CommentOfKey = lambda _: None) -> str:
    """Returns the YAML text, with the comments that `comment` returns for dotted keys."""
    lines = list(_mapping(tree, "", "", comment))
    widths = [len(text) for text, said in lines if said and len(text) <= MAX_ALIGNED_WIDTH]
    width = max(widths, default=0)
    return "\n".join(f"{text:{width}}  # {said}" if said else text for text, said in lines)


def _mapping(tree: dict[str, Any], key: str, indent: str, comment: CommentOfKey) -> Iterator[Line]:
    for name, value in tree.items():
        inner = f"{key}.{name}" if key else str(name)
        yield from _entry(f"{indent}{scalar(name)}:", value, inner, f"{indent}  ", comment)


def _entry(head: str, value: Any, key: str, indent: str, comment: CommentOfKey) -> Iterator[Line]:
    if isinstance(value, dict) and value:
        yield head, None
        yield from _mapping(value, key, indent, comment)
    elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
        yield head, None
        for position, item in enumerate(value):
            yield from _item(item, f"{key}[{position}]", indent, comment)
    else:
        yield f"{head} {scalar(value)}", comment(key)


def _item(item: Any, key: str, indent: str, comment: CommentOfKey) -> Iterator[Line]:
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


@dataclass(frozen=True, slots=True)
class YamlEntry:
    """A key, or a position in a list."""

    key: str
    """Dotted, list positions in brackets."""
    line: int
    value: yaml.Node


def key_lines(text: str) -> dict[str, int]:
    """Key to line; empty for a text that is not YAML."""
    return {entry.key: entry.line for entry in yaml_entries(text)}


def yaml_entries(text: str) -> Iterator[YamlEntry]:
    """Yields all entries of a text in order; empty if the text is not YAML."""
    try:
        root = yaml.compose(text, Loader=_BASE_LOADER)
    except yaml.YAMLError:
        return
    if root is not None:
        yield from _walk(root, "")


def _walk(node: yaml.Node, key: str, around: tuple[yaml.Node, ...] = ()) -> Iterator[YamlEntry]:
    if any(node is ancestor for ancestor in around):
        return  # an alias of a node that contains it
    inner = (*around, node)
    if isinstance(node, yaml.MappingNode):
        for name, value in sorted(node.value, key=lambda item: item[0].tag != _MERGE):
            if name.tag == _MERGE:
                yield from _walk(value, key, inner)
                continue
            child = f"{key}.{name.value}" if key else str(name.value)
            yield YamlEntry(child, name.start_mark.line + 1, value)
            yield from _walk(value, child, inner)
    elif isinstance(node, yaml.SequenceNode):
        for position, value in enumerate(node.value):
            child = f"{key}[{position}]"
            yield YamlEntry(child, value.start_mark.line + 1, value)
            yield from _walk(value, child, inner)
