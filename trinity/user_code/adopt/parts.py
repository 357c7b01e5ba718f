"""Parts that a checkout registers, in tables and with decorators, found in its syntax trees.

WORKFLOWS = Registry("workflows", default_mapping={"mine": "trinity.common.workflows.mine.Mine"})

@ADVANTAGE_FN.register_module("mine")
class Mine(AdvantageFn): ...
"""

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from trinity.user_code.adopt.checkout import Definition, Fork, SourceFile
from trinity.user_code.adopt.upstream import Origin

READERS = "FILE_READERS"
KINDS: Mapping[str, str] = {
    "WORKFLOWS": "workflow",
    "REWARD_FUNCTIONS": "reward",
    "EXPERIENCE_OPERATORS": "operator",
    "ADVANTAGE_FN": "advantage",
    "POLICY_LOSS_FN": "policy loss",
    "KL_FN": "KL estimator",
    "ENTROPY_LOSS_FN": "entropy loss",
    "ALGORITHM_TYPE": "algorithm",
    "SAMPLE_STRATEGY": "sample strategy",
    "PRIORITY_FUNC": "priority",
    "SELECTORS": "selector",
    READERS: "reader",
}
"""The registries of Trinity-RFT, and the kinds of their parts."""
_MODULE = "module_cls"


@dataclass(frozen=True, slots=True)
class FoundPart:
    """A class or function of a checkout that is registered under a name."""

    registry: str
    name: str
    source: SourceFile
    definition: Definition
    is_in_table: bool = False

    @property
    def kind(self) -> str:
        """The kind, in words."""
        return KINDS[self.registry]

    @property
    def place(self) -> str:
        """File and line."""
        return f"{self.source.path}, line {self.definition.line}"

    @property
    def rank(self) -> tuple[bool, bool, str]:
        """Orders parts of one name: a table's first, then those of the package."""
        return (not self.is_in_table, not self.source.path.startswith("trinity/"), self.source.path)


@dataclass(frozen=True, slots=True)
class FoundParts:
    """The parts of a checkout by registry and name."""

    parts: Mapping[tuple[str, str], FoundPart]
    doubles: tuple[tuple[FoundPart, FoundPart], ...]
    """Two parts of one name: the one that is used, and the other."""

    @classmethod
    def of(cls, checkout: Fork) -> "FoundParts":
        """Finds the parts that differ from Trinity-RFT's, and all that its own tables name."""
        found: dict[tuple[str, str], FoundPart] = {}
        doubles: list[tuple[FoundPart, FoundPart]] = []
        for part in sorted(_all(checkout), key=lambda part: part.rank):
            first = found.setdefault((part.registry, part.name), part)
            if first.definition is not part.definition and part.definition.origin is Origin.OWN:
                doubles.append((first, part))
        return cls(found, tuple(doubles))

    def named(self, names: Iterable[str]) -> Iterator[FoundPart]:
        """Yields the parts with these names."""
        wanted = set(names)
        return (part for (_, name), part in self.parts.items() if name in wanted)


def _all(checkout: Fork) -> Iterator[FoundPart]:
    for source in checkout.files.values():
        for node in source.tree.body:
            yield from _of_table(checkout, node)
            yield from _of_statement(source, node)


def _of_table(checkout: Fork, node: ast.stmt) -> Iterator[FoundPart]:
    """Yields the parts of `WORKFLOWS = Registry("workflows", default_mapping={...})`."""
    call = getattr(node, "value", None)
    registry = next((name for name in _targets(node) if name in KINDS), None)
    if registry is None or not isinstance(call, ast.Call):
        return
    for table in (*call.args, *(keyword.value for keyword in call.keywords)):
        for key, value in _text_pairs(table):
            module, _, name = value.rpartition(".")
            source = checkout.of_module(module)
            if source is not None and name in source.definitions:
                yield FoundPart(registry, key, source, source.definitions[name], is_in_table=True)


def _targets(node: ast.stmt) -> Iterator[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return (target.id for target in targets if isinstance(target, ast.Name))


def _text_pairs(node: ast.expr) -> Iterator[tuple[str, str]]:
    if isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and isinstance(value, ast.Constant):
                yield str(key.value), str(value.value)


def _of_statement(source: SourceFile, node: ast.stmt) -> Iterator[FoundPart]:
    """Yields the parts of decorators, and of calls such as `WORKFLOWS.register_module("a")(A)`."""
    for decorator in getattr(node, "decorator_list", []):
        own = getattr(node, "name", "")
        if (registered := _registration(decorator, own)) is not None:
            yield FoundPart(*registered, source, source.definitions[own])
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return
    for call in (child for child in ast.walk(node) if isinstance(child, ast.Call)):
        for inner, given in ((call.func, call.args), (call, [*call.args[1:], *_given(call)])):
            own = next((item.id for item in given if isinstance(item, ast.Name)), "")
            registered = _registration(inner, own)
            if registered is not None and own in source.definitions:
                yield FoundPart(*registered, source, source.definitions[own])


def _given(call: ast.Call) -> Iterator[ast.expr]:
    return (keyword.value for keyword in call.keywords if keyword.arg == _MODULE)


def _registration(node: ast.expr, own: str) -> tuple[str, str] | None:
    """Returns registry and name of `REGISTRY.register_module("name")`; the name may be missing."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return None
    if node.func.attr != "register_module":
        return None
    registry = ast.unparse(node.func.value).rpartition(".")[2]
    if registry not in KINDS:
        return None
    values = [*node.args[:1], *(k.value for k in node.keywords if k.arg == "module_name")]
    named = [value.value for value in values if isinstance(value, ast.Constant)]
    return registry, str(named[0]) if named and named[0] else own
