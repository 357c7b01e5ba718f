"""What a kill was a trial of: the files that decide what happens after it, as one digest.

A trial counts as long as these files are what they were.
"""

import ast
import hashlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from tests.chaos.points import POINTS

REPOSITORY = Path(__file__).parents[2]
FOLDERS = {
    "explorer": ("services/explorer",),
    "buffer": ("services/buffer",),
    "trainer": ("services/trainer",),
    "rank": ("services/trainer",),
    "synchronizer": ("services/synchronizer",),
    "nats": ("trinity/run/local", "services/buffer/ingest", "services/explorer/delivery"),
    "postgres": ("trinity/run/local", "services/buffer/store", "services/synchronizer/store"),
    "launcher": ("trinity/run/local",),
    "disk": ("services", "trinity/run/local"),
    "host": ("services/trainer",),
}
"""By the process that a random kill strikes."""


@cache
def digest_of(target: str) -> str:
    """Returns 16 hexadecimal digits over the files of a point, or of a process's folders.

    For a point these are the file of its function, and those it imports within its package.
    """
    point = POINTS.get(target)
    ends = () if point else target.split()[0].split("-")
    folders = [folder for end in ends for folder in FOLDERS[end]]
    files = _closure(point.target) if point else _files_below(folders)
    whole = hashlib.sha256()
    for file in sorted(files):
        whole.update(f"{file.relative_to(REPOSITORY)}\n".encode())
        whole.update(file.read_bytes())
    return whole.hexdigest()[:16]


def _files_below(folders: Iterable[str]) -> set[Path]:
    return {file for folder in folders for file in (REPOSITORY / folder).rglob("*.py")}


def _closure(target: str) -> set[Path]:
    module = target.partition(":")[0]
    package = ".".join(module.split(".")[:2])
    found: set[Path] = set()
    left = [module]
    while left:
        file = _file_of(left.pop())
        if file is not None and file not in found:
            found.add(file)
            left += [name for name in _imports(file) if name.startswith(f"{package}.")]
    return found


def _file_of(module: str) -> Path | None:
    path = REPOSITORY.joinpath(*module.split("."))
    candidates = (path.with_suffix(".py"), path / "__init__.py")
    return next((file for file in candidates if file.is_file()), None)


def _imports(file: Path) -> set[str]:
    """Names that may be modules: `from a import b` gives `a` and `a.b`."""
    names = set()
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names
