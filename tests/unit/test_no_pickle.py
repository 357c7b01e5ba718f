"""Nothing that runs code when it is read goes over a wire or into a database: no pickle, anywhere.

Our own code is looked at, all of it; what libraries do inside one process is theirs. So are the
files that verl writes into a checkpoint on the disk and reads back: ours only read their tensors,
with `weights_only=True`, and write none.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.unit.subtests import as_subtests

ROOT = Path(__file__).parents[2]
SOURCES = [
    file
    for folder in ("trinity", "services")
    for file in sorted((ROOT / folder).rglob("*.py"))
    if not file.name.endswith(("_pb2.py", "_pb2_grpc.py"))
]
FORBIDDEN = frozenset(
    ("pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve")
)
CARRIERS = frozenset(("Queue", "SimpleQueue", "JoinableQueue", "Pipe", "Pool", "Manager"))
"""Of multiprocessing: what goes through them is pickled."""
PROCESSES = ("multiprocessing.", "mp.", "torch.multiprocessing.")
OBJECTS = ("_object", "_object_list")
"""How the collectives of torch.distributed end that pickle."""
BY_NAME = frozenset(("to_pickle", "read_pickle"))
"""Of tables, whatever they are called."""
NUMPY = ("np", "numpy")
ARRAYS_OF_OBJECTS = frozenset(("save", "savez", "savez_compressed"))
"""Of numpy: an array of objects is pickled unless that is forbidden."""
FROM_LIBRARIES = {
    "torch": frozenset(("save", "load")),
    "numpy": frozenset((*ARRAYS_OF_OBJECTS, "load")),
    "pandas": BY_NAME,
}
"""Only to be called by their whole names, by which they are found here."""


def found_in(source: str) -> list[str]:
    """What would pickle, or read a pickle."""
    return [text for node in ast.walk(ast.parse(source)) for text in _found(node)]


def _found(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import | ast.ImportFrom):
        yield from _imported(node)
    elif isinstance(node, ast.Call):
        yield from _called(node)


def _imported(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
    names = [alias.name for alias in node.names]
    for name in [module, *names] if module else names:
        if name.split(".")[0] in FORBIDDEN:
            yield f"import of {name}"
    for name in names:
        if name in FROM_LIBRARIES.get(module, ()):
            yield f"import of {module}.{name}"
    if module == "concurrent.futures" and "ProcessPoolExecutor" in names:
        yield "ProcessPoolExecutor"
    if module.startswith(("multiprocessing", "torch.multiprocessing")):
        yield from (f"multiprocessing.{name}" for name in names if name in CARRIERS)


def _called(node: ast.Call) -> Iterator[str]:
    name = ast.unparse(node.func)
    first, _, last = name.rpartition(".")
    yield from _written_or_read(node, first, last)
    if name.startswith(PROCESSES) and last in CARRIERS:
        yield name
    if last == "ProcessPoolExecutor":
        yield name
    if last.endswith(OBJECTS) and name.split(".")[0] in ("torch", "dist", "distributed"):
        yield name
    by_name = name in ("__import__", "importlib.import_module", "import_module") and node.args
    if by_name and ast.unparse(node.args[0]).strip("'\"").split(".")[0] in FORBIDDEN:
        yield f"import of {ast.unparse(node.args[0])}"


def _written_or_read(node: ast.Call, first: str, last: str) -> Iterator[str]:
    """By a function of a library that may pickle, unless it is told not to."""
    given = {one.arg: ast.unparse(one.value) for one in node.keywords}
    if (first, last) == ("torch", "save"):
        yield "torch.save"
    if (first, last) == ("torch", "load") and given.get("weights_only") != "True":
        yield "torch.load without weights_only=True"
    if first in NUMPY and last in ARRAYS_OF_OBJECTS and given.get("allow_pickle") != "False":
        yield f"numpy.{last} without allow_pickle=False"
    elif given.get("allow_pickle") not in (None, "False"):
        yield "allow_pickle"
    if last in BY_NAME:
        yield last


def test_no_code_of_ours_pickles() -> None:
    found = {str(file.relative_to(ROOT)): found_in(file.read_text()) for file in SOURCES}
    assert {file: pickled for file, pickled in found.items() if pickled} == {}


def test_all_of_it_is_looked_at() -> None:
    assert len(SOURCES) > 300


@as_subtests(
    "source",
    [
        "import pickle",
        "from cloudpickle import dumps",
        "import os, dill as d",
        "__import__('marshal')",
        "import importlib; importlib.import_module('shelve')",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "np.load(file, allow_pickle=True)",
        "np.save(file, rows, allow_pickle=allowed)",
        "np.save(file, rows)",
        "numpy.savez(file, rows=rows)",
        "from numpy import load",
        "torch.save(weights, path)",
        "from torch import save as keep",
        "table.to_pickle(path)",
        "pd.read_pickle(path)",
        "from torch.multiprocessing import Queue",
        "from multiprocessing import Queue",
        "multiprocessing.Pool(4)",
        "mp.get_context('spawn').Queue()",
        "torch.multiprocessing.Queue()",
        "from concurrent.futures import ProcessPoolExecutor",
        "dist.broadcast_object_list(rows)",
        "torch.distributed.all_gather_object(rows, row)",
    ],
)
def test_whatever_pickles_would_be_found(source: str) -> None:
    assert found_in(source)


@as_subtests(
    "source",
    [
        "torch.load(p, weights_only=True)",
        "np.load(f, allow_pickle=False)",
        "np.load(f)",
        "np.save(f, rows, allow_pickle=False)",
        "safetensors.torch.save(tensors)",
        "learner.save(directory, step)",
        "import json",
        "f.load()",
    ],
)
def test_what_does_not_pickle_is_no_finding(source: str) -> None:
    assert found_in(source) == []
