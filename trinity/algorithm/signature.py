"""Signatures of functions, read from source or function: arguments, and the values they allow."""

import ast
import importlib.util
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from trinity.runtime.json_values import JsonValue

_KINDS: dict[str, tuple[type, ...]] = {
    "float": (int, float),
    "int": (int,),
    "bool": (bool,),
    "str": (str,),
}
_WORDS = {
    "float": "a number",
    "int": "a whole number",
    "bool": "true or false",
    "str": "a text",
}


def words_in(part: object) -> frozenset[str]:
    """Returns the names and texts in the code of a function, or of the methods of a class.

    Functions of its module that it calls by name are read too.
    """
    found: set[str] = set()
    waiting = [part] if inspect.isfunction(part) else _methods(part)
    read: set[types.CodeType] = set()
    while waiting:
        function = waiting.pop()
        codes = [function.__code__]
        while codes:
            code = codes.pop()
            if code in read:
                continue
            read.add(code)
            found.update(code.co_names, (text for text in code.co_consts if isinstance(text, str)))
            codes += [inner for inner in code.co_consts if isinstance(inner, types.CodeType)]
            called = (function.__globals__.get(name) for name in code.co_names)
            waiting += [
                other
                for other in called
                if inspect.isfunction(other) and other.__module__ == function.__module__
            ]
    return frozenset(found)


def _methods(source: object) -> list[types.FunctionType]:
    bases = source.__mro__ if isinstance(source, type) else ()
    members = [member for base in bases for member in vars(base).values()]
    return [member for member in members if inspect.isfunction(member)]


def allows(annotation: str, value: JsonValue) -> bool:
    """Checks a value against `float | None`, `Literal["a"]`...; unknown annotations allow all."""
    return _allows(ast.parse(annotation, mode="eval").body, value)


def describe_type(annotation: str) -> str:
    """Describes the allowed values in words."""
    return " or ".join(_descriptions(ast.parse(annotation, mode="eval").body))


def _allows(annotation: ast.expr, value: JsonValue) -> bool:
    match annotation:
        case ast.BinOp(left=left, right=right, op=ast.BitOr()):
            return _allows(left, value) or _allows(right, value)
        case ast.Subscript(value=ast.Name(id="Optional"), slice=inner):
            return value is None or _allows(inner, value)
        case ast.Subscript(value=ast.Name(id="Literal"), slice=ast.Tuple(elts=choices)):
            return any(_allows(choice, value) for choice in choices)
        case ast.Subscript(value=ast.Name(id="Literal"), slice=choice):
            return _allows(choice, value)
        case ast.Constant(value=constant):
            return type(value) is type(constant) and value == constant
        case ast.Name(id=name) if name in _KINDS:
            return isinstance(value, _KINDS[name]) and isinstance(value, bool) == (name == "bool")
    return True


def _descriptions(annotation: ast.expr) -> list[str]:
    match annotation:
        case ast.BinOp(left=left, right=right, op=ast.BitOr()):
            return [*_descriptions(left), *_descriptions(right)]
        case ast.Subscript(value=ast.Name(id="Optional"), slice=inner):
            return [*_descriptions(inner), "null"]
        case ast.Subscript(value=ast.Name(id="Literal"), slice=ast.Tuple(elts=choices)):
            return [demand for choice in choices for demand in _descriptions(choice)]
        case ast.Subscript(value=ast.Name(id="Literal"), slice=choice):
            return _descriptions(choice)
        case ast.Constant(value=None):
            return ["null"]
        case ast.Constant(value=constant):
            return [f"`{constant!s}`"]
        case ast.Name(id=name) if name in _WORDS:
            return [_WORDS[name]]
    return [f"`{ast.unparse(annotation)}`"]


@dataclass(frozen=True, slots=True)
class Argument:
    """A keyword-only argument."""

    annotation: str
    """As in the source, `float | None`; empty if not annotated."""
    default: JsonValue = None
    is_required: bool = False

    def allows(self, value: JsonValue) -> bool:
        """Returns True if the annotation allows the value; an unknown annotation allows all."""
        return not self.annotation or allows(self.annotation, value)

    @property
    def type_description(self) -> str:
        """The allowed values, described for users."""
        return describe_type(self.annotation)


@dataclass(frozen=True, slots=True)
class Signature:
    """A function's signature: one positional value, then keyword arguments."""

    name: str
    input_type: str | None
    """Annotation of the positional argument, empty if not annotated; None without such an
    argument."""
    return_type: str
    """Annotation of the return value, empty if not annotated."""
    arguments: Mapping[str, Argument]
    takes_any: bool = False
    """True if it has `**kwargs`."""
    documentation: str = ""

    @property
    def defaults(self) -> dict[str, JsonValue]:
        """The default values of the optional arguments."""
        return {name: a.default for name, a in self.arguments.items() if not a.is_required}


@lru_cache
def read_signature(path: str) -> Signature:
    """Reads the signature of the top-level function at a dotted path from its module's source."""
    module, _, name = path.rpartition(".")
    tree = _tree_of(module)
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return _of_node(node, _aliases(tree))
    raise ValueError(f"{module} defines no function {name}")


def read_documentation(path: str) -> str:
    """Returns the docstring of a module."""
    return ast.get_docstring(_tree_of(path)) or ""


@lru_cache
def read_table(path: str) -> Mapping[str, str]:
    """Reads names and dotted paths of the functions in a module's dict `{"name": function}`."""
    module, _, name = path.rpartition(".")
    for node in _tree_of(module).body:
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == name:
            assert isinstance(node.value, ast.Dict)
            pairs = zip(node.value.keys, node.value.values, strict=True)
            return {
                ast.literal_eval(key): f"{module}.{ast.unparse(of)}" for key, of in pairs if key
            }
    raise ValueError(f"{module} defines no {name}")


def signature_of(function: Callable[..., object]) -> Signature:
    """Returns the signature of a function that was imported.

    Raises: ValueError when Python does not know it.
    """
    known = inspect.signature(function)
    parameters = list(known.parameters.values())
    first = next(iter(parameters), None)
    by_place = first is not None and first.kind in (
        first.POSITIONAL_ONLY,
        first.POSITIONAL_OR_KEYWORD,
    )
    named = [p for p in parameters[by_place:] if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    return Signature(
        name=getattr(function, "__name__", type(function).__name__),
        input_type=_name_of(first.annotation) if by_place and first is not None else None,
        return_type=_name_of(known.return_annotation),
        arguments={p.name: _argument_of(p) for p in named},
        takes_any=any(p.kind is p.VAR_KEYWORD for p in parameters),
        documentation=inspect.getdoc(function) or "",
    )


@lru_cache
def _tree_of(module: str) -> ast.Module:
    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.origin is not None, module
    return ast.parse(Path(spec.origin).read_text(encoding="utf-8"))


def _aliases(tree: ast.Module) -> dict[str, ast.expr]:
    """Collects the type aliases of a module, such as `Mode = Literal["one", "two"]`."""
    return {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def _of_node(node: ast.FunctionDef, aliases: Mapping[str, ast.expr]) -> Signature:
    by_place = [*node.args.posonlyargs, *node.args.args]
    arguments = {
        argument.arg: _read_argument(argument, default, aliases)
        for argument, default in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
    }
    return Signature(
        name=node.name,
        input_type=_text(by_place[0].annotation) if by_place else None,
        return_type=_text(node.returns),
        arguments=arguments,
        takes_any=node.args.kwarg is not None,
        documentation=ast.get_docstring(node) or "",
    )


def _read_argument(
    argument: ast.arg, default: ast.expr | None, aliases: Mapping[str, ast.expr]
) -> Argument:
    annotation = argument.annotation
    if isinstance(annotation, ast.Name):
        annotation = aliases.get(annotation.id, annotation)
    if default is None:
        return Argument(_text(annotation), is_required=True)
    return Argument(_text(annotation), ast.literal_eval(default))


def _text(annotation: ast.expr | None) -> str:
    return ast.unparse(annotation) if annotation else ""


def _argument_of(parameter: inspect.Parameter) -> Argument:
    annotation = _name_of(parameter.annotation)
    if parameter.default is parameter.empty:
        return Argument(annotation, is_required=True)
    return Argument(annotation, parameter.default)


def _name_of(annotation: object) -> str:
    """Returns the annotation as it would stand in the source."""
    if annotation is inspect.Signature.empty:
        return ""
    if isinstance(annotation, str):
        return annotation
    if isinstance(annotation, type) and not typing.get_args(annotation):
        return annotation.__name__
    return str(annotation).replace("typing.", "")
