"""Imports the files that an `adopted.json` lists, and no other file of their checkout.

A file runs from the bytes whose digest was compared. A module that this package has is never
replaced: of a changed one, the definitions that the fork added run under a private name.
"""

import ast
import hashlib
import importlib
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from trinity import plugins
from trinity.errors import UserError
from trinity.runtime.security.credentials import operator_allows
from trinity.user_code.adopt.checkout import bound_names
from trinity.user_code.adopt.gathering import absolute_module, importable, is_module_here
from trinity.user_code.adopt.manifest import Adopted, AdoptedFile, AdoptedPart
from trinity.user_code.adopt.outline import NAMES, outline

logger = logging.getLogger(__name__)

CHANGES_VARIABLE = "TRINITY_ADOPTED_CHANGES"
"""`accepted` if files may differ from those that were read."""
TRUST_VARIABLE = "TRINITY_TRUST_ADOPTED"
OUTLINES = "outlines"
_ABSENT = "_trinity_absent"
_ALGORITHM = "trinity.rft.algorithm"
REGISTRIES: Mapping[str, Sequence[str]] = {
    "WORKFLOWS": ["trinity.plugins.WORKFLOWS"],
    "REWARD_FUNCTIONS": ["trinity.plugins.REWARDS"],
    "EXPERIENCE_OPERATORS": ["trinity.operators.OPERATORS"],
    "ADVANTAGE_FN": [
        f"{_ALGORITHM}.advantage_fn.ADVANTAGE_FN",
        "trinity.algorithm.advantage.ADVANTAGES",
        "trinity.algorithm.token_advantage.TOKEN_ADVANTAGES",
    ],
    "POLICY_LOSS_FN": ["trinity.algorithm.policy_loss.POLICY_LOSSES"],
    "KL_FN": ["trinity.algorithm.kl.DIVERGENCES"],
    "ENTROPY_LOSS_FN": ["trinity.algorithm.entropy.ENTROPY_LOSSES"],
    "ALGORITHM_TYPE": ["trinity.algorithm.types.ALGORITHM_TYPES"],
    "SAMPLE_STRATEGY": ["trinity.algorithm.sampling.SAMPLE_STRATEGIES"],
    "PRIORITY_FUNC": ["trinity.algorithm.priority.PRIORITIES"],
    "SELECTORS": ["trinity.operators.selectors.SELECTORS"],
}
"""Registries here: the one that registers comes first, and all of them are asked for a name."""


def load() -> None:
    """Registers the parts of the file in TRINITY_ADOPTED; a part that fails says so when named.

    Raises: UserError when a file has changed, or the operator has not allowed it.
    """
    if path := os.environ.get(plugins.ADOPTED_VARIABLE):
        _load(Path(path))


@cache
def _load(path: Path) -> None:
    adopted = Adopted.read(path)
    adopted = replace(adopted, checkout=str(adopted.place(path)))
    if not _reads() and not operator_allows(TRUST_VARIABLE):
        raise UserError(
            f"{path} would run code of {adopted.checkout} in a process that holds credentials: its "
            f"operator may allow that with {TRUST_VARIABLE}=true in its environment"
        )
    check_unchanged(adopted)
    _check_modules(path, adopted)
    plugins.CLOSED_FOLDERS.append(adopted.checkout)
    plugins.ADOPTED_MODULES.update(file.module for file in adopted.files)
    for file in adopted.files:
        sys.modules.pop(file.module, None)  # the import hook's, from before
    sys.meta_path.insert(0, _Finder(adopted))
    sys.meta_path.append(_PackageFinder(adopted))
    for part in adopted.parts:
        _register(part)


def _reads() -> bool:
    return os.environ.get(plugins.ADOPTED_AS_VARIABLE) == OUTLINES


def check_unchanged(adopted: Adopted) -> None:
    """Raises: UserError naming the files that differ from those that were read."""
    changed = [file.file for file in adopted.files if _digest(adopted, file) != file.sha256]
    if not changed:
        return
    if os.environ.get(CHANGES_VARIABLE) == "accepted":
        logger.warning("adopted files have changed", extra={"files": changed})
        return
    raise UserError(
        f"{', '.join(changed)} in {adopted.checkout} changed after `trinity adopt` read it: look "
        "at the changes, and run `trinity adopt` again, or give `trinity run --accept-changes`"
    )


def _digest(adopted: Adopted, file: AdoptedFile) -> str:
    try:
        content = Path(adopted.checkout, file.file).read_bytes()
    except OSError:
        return ""
    return hashlib.sha256(content).hexdigest()


def _check_modules(path: Path, adopted: Adopted) -> None:
    for file in adopted.files:
        top = file.module.partition(".")[0]
        if is_module_here(file.module) or top in sys.stdlib_module_names:
            raise UserError(
                f"{path} would replace the module {file.module}: write it with `trinity adopt`"
            )


def _register(part: AdoptedPart) -> None:
    first, *others = (plugins.value_at(path) for path in REGISTRIES[part.registry])
    plugins.YIELDING.add(part.name)
    try:
        module = plugins.import_module(part.module, wanted=f"{part.file}, line {part.line}")
        if part.attribute not in vars(module):
            raise UserError(f"{part.file} defines no {part.attribute!r}")
        first.register_module(part.name, vars(module)[part.attribute])
    except UserError as error:
        for registry in others or [first]:
            registry.left_out[part.name] = str(error)


class _Finder(MetaPathFinder):
    """Finds the modules of the files, before Python looks anywhere else."""

    def __init__(self, adopted: Adopted) -> None:
        self._loaders = {file.module: _FileLoader(adopted, file) for file in adopted.files}

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        loader = self._loaders.get(name)
        if loader is None:
            return None
        spec = ModuleSpec(name, loader, origin=loader.path, is_package=loader.file.is_package)
        spec.has_location = True
        return spec


class _PackageFinder(MetaPathFinder):
    """Finds the packages above them that have no file, after all others."""

    def __init__(self, adopted: Adopted) -> None:
        parts = [file.module.split(".") for file in adopted.files]
        self._names = {".".join(names[:end]) for names in parts for end in range(1, len(names))}

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        return ModuleSpec(name, None, is_package=True) if name in self._names else None


class _FileLoader(Loader):
    """Runs a file's bytes, or those of its statements that are kept."""

    def __init__(self, adopted: Adopted, file: AdoptedFile) -> None:
        self.path = str(Path(adopted.checkout, file.file))
        self.file = file
        self._adopted = adopted

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Leaves it to Python."""
        del spec
        return None

    def exec_module(self, module: ModuleType) -> None:
        """Runs the file."""
        content = Path(self.path).read_bytes()
        is_same = hashlib.sha256(content).hexdigest() == self.file.sha256
        if not is_same:
            check_unchanged(self._adopted)
        tree = ast.parse(content, self.path)
        if self.file.keep:
            tree.body = kept_statements(tree, set(self.file.keep))
        for name, where in self.file.here.items():
            vars(module)[name] = getattr(importlib.import_module(where), name)
        vars(module)[_ABSENT] = absent_class
        tree = ast.fix_missing_locations(_ImportChanger(self.file).visit(tree))
        if _reads():
            vars(module).update(NAMES)
            code = outline(tree, self.path, self._finds, self.file.here)
        else:
            code = compile(tree, self.path, "exec", dont_inherit=True)
        exec(code, vars(module))

    def _finds(self, module: str) -> bool:
        top = module.partition(".")[0]
        if top == "trinity" or module in {file.module for file in self._adopted.files}:
            return True
        if not importable(top, Path(self._adopted.checkout)):
            raise ModuleNotFoundError(name=top)
        return False


def kept_statements(tree: ast.Module, names: set[str]) -> list[ast.stmt]:
    """Returns the statements of a file that bind one of the names."""
    return [kept for node in tree.body for kept in _kept(node, names)]


def _kept(node: ast.stmt, names: set[str]) -> list[ast.stmt]:
    """Returns a statement if one of the names is bound in it, without the imports of others."""
    if isinstance(node, ast.ImportFrom) and node.module == "__future__":
        return [node]
    if isinstance(node, ast.Import | ast.ImportFrom):
        node.names = [alias for alias in node.names if _bound(node, alias) in names]
        return [node] if node.names else []
    return [node] if names.intersection(bound_names(node)) else []


def _bound(node: ast.Import | ast.ImportFrom, alias: ast.alias) -> str:
    if alias.asname or isinstance(node, ast.ImportFrom):
        return alias.asname or alias.name
    return alias.name.partition(".")[0]


class _ImportChanger(ast.NodeTransformer):
    """Imports names from the modules that have them here; absent ones become classes that raise."""

    def __init__(self, file: AdoptedFile) -> None:
        self._file = file

    def visit_ImportFrom(self, node: ast.ImportFrom) -> list[ast.stmt]:
        """Splits an import by module."""
        if node.module == "__future__":
            return [node]
        name = self._file.original or self._file.module
        is_package = self._file.file.endswith("__init__.py")
        module = absolute_module(name, is_package, node)
        made = [self._made(module, alias) for alias in node.names]
        return [ast.copy_location(statement, node) for statement in made]

    def _made(self, module: str, alias: ast.alias) -> ast.stmt:
        key = f"{module}.{alias.name}"
        if (why := self._file.absent.get(key)) is None:
            return ast.ImportFrom(self._file.moved.get(key, module), [alias], 0)
        arguments: list[ast.expr] = [ast.Constant(key), ast.Constant(why)]
        call = ast.Call(ast.Name(_ABSENT, ast.Load()), arguments, [])
        return ast.Assign([ast.Name(alias.asname or alias.name, ast.Store())], call)


def absent_class(path: str, why: str) -> type:
    """Returns a class that stands for a name of Trinity-RFT, and raises once it is used."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise UserError(f"{path} of Trinity-RFT is not here: {why}")

    def give(_: type, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        refuse()

    meta = type("_Absent", (type,), {"__getattr__": give, "__call__": refuse})
    made: type = meta(path.rpartition(".")[2], (), {})
    return made
