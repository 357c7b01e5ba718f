"""Import all of a service, also what its functions import when they run; names what is not there.

<an image's python> tests/e2e/images/import_all.py explorer
"""

import ast
import importlib
import pkgutil
import sys
from collections.abc import Iterator
from pathlib import Path


def main(service: str) -> int:
    """Answers the exit code."""
    package = importlib.import_module(f"services.{service}")
    failures = {}
    for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        module = importlib.import_module(found.name)
        assert module.__file__ is not None
        for node in imports(ast.parse(Path(module.__file__).read_text())):
            try:
                exec(compile(ast.Module([node], []), module.__file__, "exec"), {})
            except ImportError as error:
                failures[f"{found.name}, line {node.lineno}"] = error
    for place, failure in failures.items():
        sys.stderr.write(f"{place}: {failure}\n")
    return 1 if failures else 0


def imports(node: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """But for those of types, and those that may fail."""
    match node:
        case ast.Import() | ast.ImportFrom():
            yield node
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return
        case ast.Try(handlers=[ast.ExceptHandler(type=ast.Name(id="ImportError"))]):
            return
        case _:
            for child in ast.iter_child_nodes(node):
                yield from imports(child)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
