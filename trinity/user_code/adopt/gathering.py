"""The files that parts of a checkout need: their imports, and the counterparts here."""

import ast
import importlib
import importlib.util
import posixpath
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import trinity
from trinity.errors import UserError
from trinity.plugins import PLUGIN_PACKAGE
from trinity.user_code.adopt.checkout import Definition, Fork, SourceFile
from trinity.user_code.adopt.manifest import AdoptedFile
from trinity.user_code.adopt.parts import KINDS
from trinity.user_code.adopt.upstream import Origin

PRIVATE = f"{PLUGIN_PACKAGE}._adopted_"
"""Begins the names of modules that are not replaced, and of which some definitions are taken."""
_HERE = Path(trinity.__file__).parent
_SERVICES: Mapping[str, str] = {
    "trinity/buffer/operators/": "",
    "trinity/buffer/": "the buffer reads, stores and draws rows",
    "trinity/cli/": "`trinity run` starts a run",
    "trinity/common/config": "`trinity config explain KEY` says which keys act",
    "trinity/common/models/": "the explorer runs the engines",
    "trinity/common/verl_config": "`trinity config explain KEY` says which keys act",
    "trinity/explorer/": "the explorer runs workflows",
    "trinity/manager/": "the synchronizer and checkpoints of the trainer do it",
    "trinity/service/": "operators call services themselves",
    "trinity/trainer/": "the trainer computes updates with losses and advantages by name",
}
"""Files of Trinity-RFT that stay behind, and their replacement here; the first one counts."""


@dataclass(frozen=True, slots=True)
class ImportedName:
    """A name of an import statement."""

    bound: str
    module: str
    name: str | None
    """None for `import module`."""
    line: int


@dataclass(slots=True)
class _Taken:
    source: SourceFile
    module: str
    keep: set[str] = field(default_factory=set)
    here: dict[str, str] = field(default_factory=dict)
    moved: dict[str, str] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)

    def to_file(self) -> AdoptedFile:
        original = self.source.module if self.module.startswith(PRIVATE) else ""
        return AdoptedFile(
            module=self.module,
            file=self.source.path,
            sha256=self.source.sha256,
            is_package=self.source.is_package and not original,
            original=original,
            keep=tuple(sorted(self.keep)),
            here=dict(sorted(self.here.items())),
            moved=dict(sorted(self.moved.items())),
            absent=dict(sorted(self.absent.items())),
        )


@dataclass(slots=True)
class Gathering:
    """Collects files, one for each module, and remarks about them.

    gathering = Gathering(checkout)
    module = gathering.take(part.source, part.definition.name)
    gathering.files(), gathering.remarks
    """

    checkout: Fork
    remarks: dict[str, None] = field(default_factory=dict)
    packages: dict[str, str] = field(default_factory=dict)
    """Packages of others that are not installed: the first place that imports each."""
    _taken: dict[str, _Taken] = field(default_factory=dict)

    def files(self) -> tuple[AdoptedFile, ...]:
        """Returns the files in the order of their modules."""
        return tuple(self._taken[module].to_file() for module in sorted(self._taken))

    def take(self, source: SourceFile, name: str) -> str:
        """Takes a definition and its imports; returns the module that has it here."""
        if source.origin is Origin.OWN or not has_counterpart(source):
            is_taken_name = is_module_here(source.module)
            return self._take_whole(source, _private(source) if is_taken_name else source.module)
        module = _private(source)
        taken = self._taken.setdefault(module, _Taken(source, module))
        self._keep(taken, name)
        return module

    def _take_whole(self, source: SourceFile, module: str) -> str:
        if module in self._taken:
            if self._taken[module].source is not source:
                self._remark(f"{source.path}: another file is imported as `{module}`; rename one")
            return module
        taken = self._taken[module] = _Taken(source, module)
        parent = module.rpartition(".")[0]
        package = self.checkout.of_module(parent) if parent and not is_module_here(parent) else None
        if package is not None and package.origin is Origin.OWN:
            self._take_whole(package, parent)
        for wanted in imported_names(source, source.tree.body):
            self._need(taken, wanted)
        return module

    def _keep(self, taken: _Taken, name: str) -> None:
        """Keeps a definition of a changed file, and those that it uses."""
        if name in taken.keep:
            return
        taken.keep.add(name)
        source = taken.source
        node = source.definitions[name].node
        imports = {item.bound: item for item in imported_names(source, source.tree.body, top=True)}
        for used in sorted({item.id for item in ast.walk(node) if isinstance(item, ast.Name)}):
            if used in source.definitions:
                if not _is_own(source.definitions[used]) and is_here(source.module, used):
                    taken.here[used] = source.module
                else:
                    self._keep(taken, used)
            elif used in imports:
                taken.keep.add(used)
                self._need(taken, imports[used])
        for wanted in imported_names(source, [node]):
            self._need(taken, wanted)

    def _need(self, taken: _Taken, wanted: ImportedName) -> None:
        if wanted.module.partition(".")[0] == "trinity":
            self._need_of_trinity(taken, wanted)
            return
        top = wanted.module.partition(".")[0]
        beside = posixpath.dirname(taken.source.path)
        module, name = wanted.module, wanted.name
        names = [module, *([f"{module}.{name}"] if name else [])]
        found = [(own, self.checkout.of_module(own, beside)) for own in names]
        is_there = importable(top, self.checkout.root)
        place = f"{taken.source.path}, line {wanted.line}"
        if any(source is not None for _, source in found):
            if is_there:
                self._remark(f"{place}: `{top}` is an installed package, not the fork's")
                return
            for own, source in found:
                if source is not None:
                    self._take_whole(source, own)
        elif not is_there:
            self.packages.setdefault(top, place)

    def _need_of_trinity(self, taken: _Taken, wanted: ImportedName) -> None:
        module, name = wanted.module, wanted.name
        below = self.checkout.of_module(f"{module}.{name}") if name else None
        source = below or self.checkout.of_module(module)
        if source is not None and source.origin is Origin.OWN:
            own = self.take(source, name or "")
            if name is not None and below is None:
                self._move(taken, wanted, own)
            return
        if name is None or name == "*" or below is not None:
            if source is not None and not has_counterpart(source) and not service_of(source.path):
                self._take_whole(source, source.module)
            return
        definition = source.definitions.get(name) if source is not None else None
        is_own = definition is not None and _is_own(definition)
        if not is_own and is_here(module, name):
            return
        if source is not None and definition is None:
            self._need_of_reexport(taken, wanted, source)
        elif source is not None and not (service_of(source.path) and not is_own):
            self._move(taken, wanted, self.take(source, name))
        else:
            self._leave(taken, wanted, source)

    def _need_of_reexport(self, taken: _Taken, wanted: ImportedName, source: SourceFile) -> None:
        """A package's file imports the name from a module that has it."""
        for item in imported_names(source, source.tree.body, top=True):
            if item.bound == wanted.name and item.name is not None:
                target = self.checkout.of_module(item.module)
                if target is not None and item.name in target.definitions and target is not source:
                    module = self.take(target, item.name)
                    self._move(taken, wanted, module)
                    return
        self._leave(taken, wanted, source)

    def _move(self, taken: _Taken, wanted: ImportedName, module: str) -> None:
        if module != wanted.module:
            taken.moved[f"{wanted.module}.{wanted.name}"] = module

    def _leave(self, taken: _Taken, wanted: ImportedName, source: SourceFile | None) -> None:
        path = source.path if source is not None else wanted.module.replace(".", "/") + ".py"
        why = service_of(path) or "nothing here has this name"
        taken.absent[f"{wanted.module}.{wanted.name}"] = why
        self._remark(
            f"{taken.source.path}, line {wanted.line}: `{wanted.name}` of {wanted.module} is not "
            f"here, and code that uses it fails: {why}"
        )

    def _remark(self, sentence: str) -> None:
        self.remarks[sentence] = None


def _is_own(definition: Definition) -> bool:
    """False for a registry: those of this package are used."""
    return definition.origin is Origin.OWN and definition.name not in KINDS


def _private(source: SourceFile) -> str:
    return PRIVATE + source.module.replace(".", "_")


def imported_names(
    source: SourceFile, nodes: Iterable[ast.stmt], *, top: bool = False
) -> Iterator[ImportedName]:
    """Yields imported names, with absolute modules; with `top`, those outside of definitions."""
    for node in nodes:
        if top and isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for child in ast.walk(node):
            if isinstance(child, ast.Import):
                for alias in child.names:
                    bound = alias.asname or alias.name.partition(".")[0]
                    yield ImportedName(bound, alias.name, None, child.lineno)
            elif isinstance(child, ast.ImportFrom) and child.module != "__future__":
                module = absolute_module(source.module, source.is_package, child)
                for alias in child.names:
                    yield ImportedName(alias.asname or alias.name, module, alias.name, child.lineno)


def absolute_module(module: str, is_package: bool, node: ast.ImportFrom) -> str:
    """Returns the module of `from ..a import b` in this module."""
    if not node.level:
        return node.module or ""
    parts = module.split(".")
    parts = parts[: len(parts) - node.level + is_package]
    return ".".join([*parts, *([node.module] if node.module else [])])


def is_module_here(module: str) -> bool:
    """True for a module of this package, also by its name in Trinity-RFT."""
    first, *rest = module.split(".")
    places = (_HERE.joinpath(*rest), _HERE.joinpath("rft", *rest))
    return first == "trinity" and any(
        place.with_suffix(".py").is_file() or (place / "__init__.py").is_file() for place in places
    )


@cache
def is_here(module: str, name: str) -> bool:
    """True for a name that a module of this package gives, which is imported."""
    if module.partition(".")[0] != "trinity":
        return False
    try:
        getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        return not (error.name or "").startswith("trinity")
    except (ImportError, AttributeError, UserError):
        return False
    return True


def has_counterpart(source: SourceFile) -> bool:
    """True for a module of which this package has at least a part."""
    definitions = source.definitions.values()
    return is_module_here(source.module) or any(
        own.origin is not Origin.OWN and is_here(source.module, own.name)
        for own in definitions
        if isinstance(own.node, ast.ClassDef | ast.FunctionDef)
    )


def importable(top: str, root: Path) -> bool:
    """True for a package that Python finds outside of the checkout; it is not imported."""
    if top in sys.stdlib_module_names:
        return True
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError, AttributeError):
        return False
    places = [spec.origin, *(spec.submodule_search_locations or [])] if spec else []
    return any(place and not Path(place).resolve().is_relative_to(root) for place in places)


def service_of(path: str) -> str:
    """Returns the replacement of a file that is never taken; empty for other files."""
    return next((work for start, work in _SERVICES.items() if path.startswith(start)), "")
