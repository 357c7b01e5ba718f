"""Outlines of modules: their classes and functions with signatures, of which no line runs.

vars(module).update(NAMES)
exec(outline(tree, path, finds, ()), vars(module))     # runs nothing that the file says

A check needs names, bases, signatures, flags and the words in methods. So names of packages and
values other than literals are `Unread`, and a function raises when it is called, unless it only
returns a literal.
"""

import __future__

import ast
import builtins
from collections.abc import Callable, Iterable, Iterator
from types import CodeType
from typing import Any

from trinity.errors import UserError
from trinity.user_code.adopt.checkout import bound_names

_RAISES = "_trinity_raises"
_MISSES = "_trinity_misses"
_UNREAD = "_trinity_unread"
_BASES = "_trinity_bases"
_PLAIN = frozenset({"abc", "collections", "collections.abc", "dataclasses", "enum", "typing"})
"""Modules of Python whose classes shape those that are checked."""
_DECORATORS = ("staticmethod", "classmethod", "property", "abstractmethod", "dataclass")
_GENERIC = ("Generic", "Protocol")
_DEFAULTS = ("default_args", "default_config")
_OF_CLASSES = ("__init_subclass__", "__set_name__", "__class_getitem__", "__prepare__")
"""Methods that run when classes are made."""


class _UnreadType(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return cls


class Unread(metaclass=_UnreadType):
    """A value that a check does not look at."""


def _raises() -> None:
    raise UserError("a check runs nothing of a fork, and this depends on what its code returns")


def _misses(package: str) -> None:
    raise ModuleNotFoundError(f"No module named {package!r}", name=package)


def _bases(*found: object) -> tuple[type, ...]:
    return tuple(base for base in dict.fromkeys(found) if isinstance(base, type) and base != Unread)


NAMES = {_RAISES: _raises, _MISSES: _misses, _UNREAD: Unread, _BASES: _bases}
"""Names that the code of an outline uses."""


def outline(
    tree: ast.Module, path: str, finds: Callable[[str], bool], bound: Iterable[str]
) -> CodeType:
    """Returns code that makes a module's outline; some names are bound already.

    `finds` is true for modules that may be imported, as they are outlines or come with this
    package, and raises ModuleNotFoundError for those that are missing.
    """
    names = {*NAMES, *dir(builtins), *bound}
    tree.body = list(_Outline(finds, names).statements(tree.body))
    flags = __future__.annotations.compiler_flag
    tree = ast.fix_missing_locations(tree)
    code: CodeType = compile(tree, path, "exec", flags, dont_inherit=True)
    return code


class _Outline:
    def __init__(self, finds: Callable[[str], bool], names: set[str]) -> None:
        self._finds = finds
        self._names = names
        self._is_tried = False

    def statements(self, nodes: list[ast.stmt]) -> Iterator[ast.stmt]:
        for node in nodes:
            for made in self._made(node):
                yield ast.copy_location(made, node)
                self._names.update(bound_names(made))

    def _made(self, node: ast.stmt) -> Iterator[ast.stmt]:
        match node:
            case ast.Import() | ast.ImportFrom():
                try:
                    yield from list(self._imported(node))
                except ModuleNotFoundError as error:
                    if self._is_tried:
                        raise
                    yield ast.Expr(ast.Call(_name(_MISSES), [ast.Constant(error.name)], []))
            case ast.ClassDef():
                yield self._of_class(node)
            case ast.FunctionDef() | ast.AsyncFunctionDef() if not _is_of_class(node):
                yield self._of_function(node)
            case ast.Assign(targets=[ast.Name() | ast.Tuple() as target], value=value):
                given = self._value(value) if isinstance(target, ast.Name) else _name(_UNREAD)
                yield from (
                    ast.Assign([_name(name, ast.Store())], given) for name in bound_names(target)
                )
            case ast.AnnAssign(target=ast.Name(), value=value):
                node.value = None if value is None else self._value(value)
                yield node
            case ast.If(test=ast.Compare(left=ast.Name(id="__name__"))):
                return
            case ast.If(test=test, body=body) if _ends(test, "TYPE_CHECKING"):
                yield from self._tried(body, [])
            case ast.If(body=body, orelse=other):
                yield from self.statements([*other, *body])
            case ast.Try(body=body, handlers=handlers):
                yield from self._tried(body, handlers)

    def _tried(self, body: list[ast.stmt], handlers: list[ast.ExceptHandler]) -> Iterator[ast.stmt]:
        was_tried, self._is_tried = self._is_tried, True
        try:
            made = list(self.statements(body))
        except ModuleNotFoundError:
            made = list(self.statements([each for own in handlers for each in own.body]))
        self._is_tried = was_tried
        yield from made

    def _imported(self, node: ast.Import | ast.ImportFrom) -> Iterator[ast.stmt]:
        if isinstance(node, ast.ImportFrom) and node.module == "__future__":
            return
        for alias in node.names:
            module = alias.name if isinstance(node, ast.Import) else node.module or ""
            if self._finds(module) or module in _PLAIN:
                if isinstance(node, ast.Import):
                    yield ast.Import([alias])
                else:
                    yield ast.ImportFrom(node.module, [alias], 0)
            elif alias.name != "*":
                bound = alias.asname or alias.name.partition(".")[0]
                yield ast.Assign([_name(bound, ast.Store())], _name(_UNREAD))

    def _of_class(self, node: ast.ClassDef) -> ast.ClassDef:
        bases = [base.value if isinstance(base, ast.Subscript) else base for base in node.bases]
        kept = [base for base in bases if self._is_bound(base) and not _ends(base, *_GENERIC)]
        node.bases = [ast.Starred(ast.Call(_name(_BASES), kept, []), ast.Load())]
        node.keywords = [word for word in node.keywords if _ends(word.value, "ABCMeta")]
        node.decorator_list = self._decorators(node)
        document = [each for each in node.body[:1] if ast.get_docstring(node) is not None]
        node.body = [*document, *self.statements(node.body)] or [ast.Pass()]
        return node

    def _of_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.stmt:
        node.decorator_list = self._decorators(node)
        arguments = node.args
        arguments.defaults = [_default(value) for value in arguments.defaults]
        arguments.kw_defaults = [value and _default(value) for value in arguments.kw_defaults]
        returned = _returned(node)
        if returned is not None:
            node.body = [ast.Return(returned)]
            return node
        first: ast.stmt = ast.Expr(ast.Call(_name(_RAISES), [], []))
        if node.name == "__init__":
            first = ast.If(_name(_RAISES), [ast.Return()], [])
        node.body = [*node.body[: ast.get_docstring(node) is not None], first, *node.body]
        return node

    def _decorators(
        self, node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    ) -> list[ast.expr]:
        made = (each.func if isinstance(each, ast.Call) else each for each in node.decorator_list)
        return [each for each in made if self._is_bound(each) and _ends(each, *_DECORATORS)]

    def _value(self, node: ast.expr) -> ast.expr:
        is_kept = _is_literal(node) or (isinstance(node, ast.Name) and self._is_bound(node))
        return node if is_kept else _name(_UNREAD)

    def _is_bound(self, node: ast.expr) -> bool:
        while isinstance(node, ast.Attribute):
            node = node.value
        return isinstance(node, ast.Name) and node.id in self._names


def _is_of_class(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """True for a method that makes classes run, or that sets a property."""
    setters = (each for each in node.decorator_list if _ends(each, "setter", "deleter"))
    return node.name in _OF_CLASSES or any(setters)


def _returned(node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.expr | None:
    """The literal that a function returns; of defaults those items that are literals."""
    body = node.body[ast.get_docstring(node) is not None :]
    last = body[-1] if body else None
    value = last.value if isinstance(last, ast.Return) else None
    if len(body) == 1 and value is not None and _is_literal(value):
        return value
    if node.name not in _DEFAULTS:
        return None
    for each in body:
        match each:
            case ast.Assign(targets=[ast.Name(id=name)], value=given) if (
                isinstance(value, ast.Name) and value.id == name
            ):
                value = given
    match value:
        case ast.Dict(keys=keys, values=values):
            pairs = [
                (key, each)
                for key, each in zip(keys, values, strict=True)
                if key is not None and _is_literal(key) and _is_literal(each)
            ]
            return ast.Dict([key for key, _ in pairs], [each for _, each in pairs])
        case ast.Call(func=ast.Name(id="dict"), keywords=words):
            kept = [word for word in words if word.arg and _is_literal(word.value)]
            return ast.Dict([ast.Constant(word.arg) for word in kept], [w.value for w in kept])
    return ast.Dict([], [])


def _is_literal(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False
    return True


def _default(node: ast.expr) -> ast.expr:
    return node if _is_literal(node) else ast.Constant(None)


def _ends(node: ast.expr, *names: str) -> bool:
    return ast.unparse(node).rpartition(".")[2] in names


def _name(name: str, context: ast.expr_context | None = None) -> ast.Name:
    return ast.Name(name, context or ast.Load())
