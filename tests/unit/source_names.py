"""Resolves dotted names and file paths of this repository from its sources, without imports."""

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOTS = ("trinity", "services", "tests", "examples", "benchmarks", "deploy")
"""Folders whose names begin a dotted name of ours."""
_LEFT_OUT = re.compile(
    r"(^|/)(\.(?!ci\b|gitignore|dockerignore|pre-commit)[^/]*|__pycache__|build|dist|work)(/|$)"
)
_NOT_SOURCES = ("node_modules", "checkpoints")


@cache
def files() -> tuple[str, ...]:
    """Every file of the repository as a path under its root, without what tools leave behind."""
    return tuple(sorted(_walk(ROOT)))


def _walk(folder: Path) -> Iterator[str]:
    for path in folder.iterdir():
        name = path.relative_to(ROOT).as_posix()
        if _LEFT_OUT.search(name) or name in _NOT_SOURCES or path.suffix == ".egg-info":
            continue
        if path.is_dir():
            yield from _walk(path)
        else:
            yield name


@cache
def folders() -> frozenset[str]:
    """Every folder that holds a file."""
    return frozenset(str(parent) for name in files() for parent in Path(name).parents)


@dataclass(frozen=True, slots=True)
class Names:
    """What a module or class binds: a class, an import `(module, name)`, or something else."""

    bound: dict[str, "Names | tuple[str, str] | None"] = field(default_factory=dict)
    bases: list[str] = field(default_factory=list)


@cache
def modules() -> Mapping[str, str]:
    """Dotted name to file of every module; folders count as packages."""
    found = {folder.replace("/", "."): folder for folder in folders() if _is_ours(folder)}
    for name in files():
        if name.endswith((".py", ".pyi")) and _is_ours(name):
            found[name.rsplit(".", 1)[0].replace("/", ".").removesuffix(".__init__")] = name
    return found


def _is_ours(path: str) -> bool:
    return path.split("/")[0] in ROOTS


@cache
def names_of(module: str) -> Names:
    """What the module binds at its top level, wherever in it that stands."""
    file = ROOT / modules()[module]
    if file.is_dir():
        return Names()
    return _bound(ast.parse(file.read_text(encoding="utf-8")).body, module)


def _bound(body: list[ast.stmt], module: str) -> Names:
    names = Names()
    for statement in body:
        _bind(statement, names, module)
    return names


def _bind(node: ast.AST, names: Names, module: str) -> None:
    match node:
        case ast.ClassDef():
            inner = _bound(node.body, module)
            inner.bases.extend(ast.unparse(base).split("[")[0] for base in node.bases)
            inner.bound.update(dict.fromkeys(_attributes(node)))
            names.bound[node.name] = inner
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            names.bound[node.name] = None
        case ast.Import():
            for alias in node.names:
                bound = alias.asname or alias.name.split(".")[0]
                names.bound[bound] = (alias.name if alias.asname else bound, "")
        case ast.ImportFrom():
            for alias in node.names:
                names.bound[alias.asname or alias.name] = (node.module or "", alias.name)
        case ast.Name(ctx=ast.Store()):
            names.bound[node.id] = None
        case ast.Lambda():
            pass
        case _:
            for child in ast.iter_child_nodes(node):
                _bind(child, names, module)


def _attributes(node: ast.ClassDef) -> Iterator[str]:
    for child in ast.walk(node):
        match child:
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                yield name


def resolves(dotted: str) -> bool:
    """True for a module of ours, or an attribute of one as far as sources tell.

    `package.module:Class.method` is read as `package.module.Class.method`. An attribute of what is
    imported from elsewhere, or of a value that no class statement made, is taken to exist.
    """
    parts = dotted.replace(":", ".").split(".")
    for length in range(len(parts), 0, -1):
        module = ".".join(parts[:length])
        if module in modules():
            return _has(module, parts[length:])
    return False


def _has(module: str, attributes: list[str]) -> bool:
    if not attributes:
        return True
    if (inner := f"{module}.{attributes[0]}") in modules():
        return _has(inner, attributes[1:])
    return _holds(names_of(module), attributes, module)


def _holds(names: Names, attributes: list[str], module: str) -> bool:
    first, *rest = attributes
    if first not in names.bound:
        return any(_base_has(base, attributes, module) for base in names.bases)
    bound = names.bound[first]
    if isinstance(bound, tuple):
        source, name = bound
        if source.split(".")[0] not in ROOTS:
            return True
        return _has(source, [name, *rest] if name else rest)
    return not rest or bound is None or _holds(bound, rest, module)


def _base_has(base: str, attributes: list[str], module: str) -> bool:
    parts = base.split(".")
    bound = names_of(module).bound.get(parts[0])
    if isinstance(bound, tuple) and bound[0].split(".")[0] not in ROOTS:
        return True  # a base from elsewhere may have any attribute
    return _holds(names_of(module), [*parts, *attributes], module) if bound else False
