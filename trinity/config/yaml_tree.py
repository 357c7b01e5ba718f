"""YAML text as plain values: texts, numbers, lists and mappings, each its own object."""

import re
from typing import Any, ClassVar

import yaml

_Base: Any = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
_DATE = "tag:yaml.org,2002:timestamp"
_FLOAT = "tag:yaml.org,2002:float"


class _Loader(_Base):  # type: ignore[misc]  # which of two is known at run time
    """YAML as configurations are written: `1e-5` is a number, a date a text, a key stands once."""

    yaml_implicit_resolvers: ClassVar[dict[str, list[tuple[str, re.Pattern[str]]]]] = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag != _DATE]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Refuses what YAML itself lets pass: of two lines of one key the first would be lost."""
        seen: set[str] = set()
        for key, _ in node.value:
            name = f"{key.tag} {key.value}" if isinstance(key, yaml.ScalarNode) else ""
            if name in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key `{key.value}` stands there twice", key.start_mark
                )
            seen |= {name} if name and key.tag != "tag:yaml.org,2002:merge" else set()
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping


_Loader.add_implicit_resolver(
    _FLOAT, re.compile(r"[-+]?[0-9]+([.][0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def load_yaml(text: str) -> Any:
    """What the text holds; raises yaml.YAMLError where it is no YAML, or goes round in circles."""
    return _own(yaml.load(text, Loader=_Loader), ())


def _own(value: Any, around: tuple[int, ...]) -> Any:
    """A copy without shared parts: an alias is a value of its own, free to be changed."""
    if id(value) in around:
        raise yaml.YAMLError("an alias leads back to what it stands in")
    inner = (*around, id(value))
    if isinstance(value, dict):
        return {key: _own(one, inner) for key, one in value.items()}
    if isinstance(value, list):
        return [_own(one, inner) for one in value]
    return value
