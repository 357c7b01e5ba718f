"""Checks sizes and names that `CONTRIBUTING.md` asks for: files, functions, classes, loops.

Tests, generated code and migrations are left out. Run by python -m tests.support.prose.
"""

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

from tests.support.faults import Fault

SOURCES = ("trinity/", "services/", "benchmarks/", "examples/", "deploy/")
LEFT_OUT = ("trinity/api/", "services/buffer/migrations/", "services/synchronizer/migrations/")
MAX_FILE_LINES = 500
MAX_CLASS_LINES = 312
MAX_FUNCTION_LINES = 59
MAX_FILES_OF_FOLDER = 35
MEANINGLESS = "one"
"""A loop variable that does not say what it stands for."""
UPSTREAM = (
    "trinity/rft/algorithm/algorithm.py",
    "trinity/rft/algorithm/sample_strategy/",
    "trinity/rft/common/",
    "trinity/rft/utils/",
    "trinity/rft/workflows/",
    "trinity/workflows/task.py",
)
"""Classes here carry the names of Trinity-RFT, since files written for it import them."""


def is_source(file: str) -> bool:
    """True for a Python file whose shape is checked."""
    return file.endswith(".py") and file.startswith(SOURCES) and not file.startswith(LEFT_OUT)


def faults_of_shape(texts: Mapping[str, str]) -> Iterator[Fault]:
    """Yields the faults of source files, by their path from the repository's root."""
    classes: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for file, text in texts.items():
        if (length := text.count("\n")) > MAX_FILE_LINES:
            yield Fault(file, 1, f"{length} lines, at most {MAX_FILE_LINES}: split it by topic")
        tree = ast.parse(text)
        yield from _faults_of_constants(file, tree)
        for node in ast.walk(tree):
            yield from _faults_of_node(file, node)
            is_ours = isinstance(node, ast.ClassDef) and not file.startswith(UPSTREAM)
            if is_ours and isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                classes[node.name].append((file, node.lineno))
    for name, places in classes.items():
        for file, line in places[1:]:
            yield Fault(file, line, f"class `{name}` is one of {places[0][0]}, too: rename it")
    yield from _full_folders(texts)


def _faults_of_node(file: str, node: ast.AST) -> Iterator[Fault]:
    if isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
        for part in ast.walk(node.target):
            if isinstance(part, ast.Name) and part.id == MEANINGLESS:
                yield Fault(file, part.lineno, f"`for {MEANINGLESS} in`: name what it is")
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        yield from _too_long(file, node, MAX_FUNCTION_LINES)
    elif isinstance(node, ast.ClassDef):
        yield from _too_long(file, node, MAX_CLASS_LINES)


def _faults_of_constants(file: str, tree: ast.Module) -> Iterator[Fault]:
    """Yields names of one letter, and constants that could stand above the first function.

    A constant that needs a function or class of its module has to stand below that.
    """
    defined: set[str] = set()
    has_function = False
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            has_function = has_function or not isinstance(node, ast.ClassDef)
            defined.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            used = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            parts = (part for target in targets for part in ast.walk(target))
            given = {part.id for part in parts if isinstance(part, ast.Name)}
            for name in given - {"_"}:
                if len(name) == 1:
                    yield Fault(file, node.lineno, f"`{name}`: a name of a module has a meaning")
            if used & defined:
                defined |= given
            elif has_function:
                yield Fault(file, node.lineno, "a constant: it stands above the functions")


def _too_long(
    file: str, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, most: int
) -> Iterator[Fault]:
    length = (node.end_lineno or node.lineno) - node.lineno + 1
    if length > most:
        yield Fault(file, node.lineno, f"`{node.name}` has {length} lines, at most {most}")


def _full_folders(files: Mapping[str, str]) -> Iterator[Fault]:
    paths = [PurePosixPath(file) for file in files]
    sizes = Counter(str(path.parent) for path in paths if path.name != "__init__.py")
    for folder, size in sizes.items():
        if size > MAX_FILES_OF_FOLDER:
            yield Fault(folder, 1, f"{size} files, at most {MAX_FILES_OF_FOLDER}")
