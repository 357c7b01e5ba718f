"""Reads YAML text as plain values: texts, numbers, lists and mappings, none shared."""

import re
from typing import Any, ClassVar

import yaml

_Base: Any = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
_DATE = "tag:yaml.org,2002:timestamp"
_FLOAT = "tag:yaml.org,2002:float"


class _Loader(_Base):  # type: ignore[misc]  # one of two classes, chosen at run time
    """YAML of configurations: `1e-5` is a number, a date is a text, and keys are unique."""

    yaml_implicit_resolvers: ClassVar[dict[str, list[tuple[str, re.Pattern[str]]]]] = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag != _DATE]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Rejects duplicate keys, which YAML allows and of which it would drop the first."""
        seen: set[str] = set()
        for key, _ in node.value:
            name = f"{key.tag} {key.value}" if isinstance(key, yaml.ScalarNode) else ""
            if name in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key `{key.value}` is given twice", key.start_mark
                )
            seen |= {name} if name and key.tag != "tag:yaml.org,2002:merge" else set()
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping


_Loader.add_implicit_resolver(
    _FLOAT, re.compile(r"[-+]?[0-9]+([.][0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def load_yaml(text: str) -> Any:
    """The text's value; raises yaml.YAMLError if it is not YAML, or if an alias is circular."""
    return _own(yaml.load(text, Loader=_Loader), ())


def _own(value: Any, around: tuple[int, ...]) -> Any:
    """A copy without shared parts: an alias is a value of its own, free to be changed."""
    if id(value) in around:
        raise yaml.YAMLError("an alias leads back to what it stands in")
    inner = (*around, id(value))
    if isinstance(value, dict):
        return {key: _own(item, inner) for key, item in value.items()}
    if isinstance(value, list):
        return [_own(item, inner) for item in value]
    return value
