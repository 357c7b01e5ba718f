"""Files of a checkout, read and parsed but never imported.

fork = Fork.read(Path("my-fork"))
source = fork.of_module("trinity.common.workflows.my_workflow")
source.origin, source.definitions["MyWorkflow"].origin
"""

import ast
import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Self

from trinity.errors import UserError
from trinity.user_code.adopt.upstream import Origin, Upstream, definition_text

MAX_BYTES = 1024**2
"""Larger files hold data."""
NEVER = frozenset({"setup.py", "conftest.py", "__main__.py"})
"""Files that act when they are imported."""
LEFT_OUT = frozenset({"tests", "docs", "build", "dist", "node_modules", "site-packages", "venv"})
_VERSION = re.compile(r"""^__version__\s*=\s*["']([^"']+)""", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Definition:
    """A class, a function or a constant at the top of a module."""

    name: str
    node: ast.stmt
    origin: Origin

    @property
    def line(self) -> int:
        """The line of its name."""
        return self.node.lineno


@dataclass(frozen=True)
class SourceFile:
    """A Python file of a checkout."""

    path: str
    """From the root of the checkout, with slashes."""
    content: bytes = field(repr=False)
    tree: ast.Module = field(repr=False)
    origin: Origin

    @property
    def sha256(self) -> str:
        """The digest of the content."""
        return hashlib.sha256(self.content).hexdigest()

    @property
    def is_package(self) -> bool:
        """True for the file of a folder."""
        return self.path.endswith("__init__.py")

    @property
    def module(self) -> str:
        """The name by which a program imports it from the root, or from a folder like `my-runs`."""
        parts = self.path.removesuffix(".py").removesuffix("/__init__").split("/")
        after = max((i + 1 for i, part in enumerate(parts) if not part.isidentifier()), default=0)
        return ".".join(parts[after:])

    @cached_property
    def definitions(self) -> Mapping[str, Definition]:
        """Definitions by name; a later one replaces an earlier one, as when the file runs."""
        lines = self.content.decode("utf-8", "replace").splitlines()
        return {
            name: Definition(name, node, self._origin_of(name, definition_text(lines, node)))
            for node in self.tree.body
            for name in bound_names(node)
            if not isinstance(node, ast.Import | ast.ImportFrom)
        }

    def _origin_of(self, name: str, text: str) -> Origin:
        if self.origin is not Origin.CHANGED:
            return self.origin
        return Upstream.read().origin_of(self.path, name, text)


def bound_names(node: ast.AST) -> Iterator[str]:
    """Yields the names that a statement at the top of a module binds, also below `if` and `try`."""
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        yield node.name
    elif isinstance(node, ast.Import):
        yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield from (alias.asname or alias.name for alias in node.names)
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    else:
        for child in ast.iter_child_nodes(node):
            yield from bound_names(child)


@dataclass(frozen=True, slots=True)
class Fork:
    """The Python files below a folder, by path, and those that cannot be read."""

    root: Path
    files: Mapping[str, SourceFile]
    unreadable: Mapping[str, str]
    """The reason by path."""

    @classmethod
    def read(cls, root: Path) -> Self:
        """Reads the files of a fork of Trinity-RFT.

        Raises: UserError for a folder that is none.
        """
        files: dict[str, SourceFile] = {}
        unreadable: dict[str, str] = {}
        for path in _python_files(root):
            name = path.relative_to(root).as_posix()
            try:
                files[name] = _parsed(name, path.read_bytes())
            except (SyntaxError, ValueError, RecursionError, MemoryError, OSError) as error:
                unreadable[name] = f"{type(error).__name__}: {error}"
        if not any(name.startswith("trinity/common/") for name in files):
            raise UserError(
                f"{root} is no copy of Trinity-RFT: it has no Python files in trinity/common; give "
                "the folder that holds `trinity`, or `--plugin-dir` for files of your own"
            )
        return cls(root, files, unreadable)

    @property
    def version(self) -> str:
        """The release that it says it is; empty if it says none."""
        source = self.files.get("trinity/__init__.py")
        found = source and _VERSION.search(source.content.decode("utf-8", "replace"))
        return found[1] if found else ""

    def count(self, origin: Origin) -> int:
        """Returns the number of files of this origin below `trinity`."""
        return sum(
            source.origin is origin
            for name, source in self.files.items()
            if name.startswith("trinity/")
        )

    def of_module(self, module: str, beside: str = "") -> SourceFile | None:
        """Returns the file of a module; a name without dots may also lie in the folder `beside`."""
        place = module.replace(".", "/")
        places = [place, *([f"{beside}/{place}"] if beside and not _is_in_trinity(module) else [])]
        names = (name for at in places for name in (f"{at}.py", f"{at}/__init__.py"))
        return next((self.files[name] for name in names if name in self.files), None)


def _is_in_trinity(module: str) -> bool:
    return module.partition(".")[0] == "trinity"


def _python_files(root: Path) -> Iterator[Path]:
    """Yields Python files; links that lead out of the folder are not followed."""
    for folder, folders, names in os.walk(root):
        here = Path(folder).relative_to(root).parts
        is_in_trinity = here[:1] == ("trinity",)
        left_out = () if is_in_trinity else LEFT_OUT
        folders[:] = sorted(
            name
            for name in folders
            if name not in left_out and not name.startswith(".")
            if name.isidentifier() or not is_in_trinity
        )
        for name in sorted(names):
            path = Path(folder, name)
            is_module = name.endswith(".py") and name not in NEVER and name[:-3].isidentifier()
            if is_module and path.resolve().is_relative_to(root) and _is_small(path):
                yield path


def _is_small(path: Path) -> bool:
    return path.is_file() and path.stat().st_size <= MAX_BYTES


def _parsed(name: str, content: bytes) -> SourceFile:
    origin = Upstream.read().origin(name, content)
    return SourceFile(name, content, ast.parse(content, name), origin)
