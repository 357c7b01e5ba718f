"""Writes the table of calls in docs/security.md from the scopes.

    python -m trinity.security.document docs/security.md [--check]

What stands between `<!-- table: calls -->` and `<!-- end -->` is replaced; all else is kept.
"""

import argparse
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from google.protobuf.descriptor import Descriptor

from trinity.security.roles import ROLE
from trinity.security.scopes import SCOPES_OF_METHODS, WHOLE_PROCESS_METHODS, Scope
from trinity.security.tenancy import EXPERIMENT, TENANT, paths_to

_TABLE = re.compile(r"<!-- table: calls -->\n.*?<!-- end -->", re.DOTALL)
_FILES = ("synchronizer", "buffer", "query", "taskset", "explorer", "trainer")


def main() -> None:
    """Write the table, or say that it is not what the code says."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("file", type=Path)
    parser.add_argument("--check", action="store_true", help="write nothing, fail on a difference")
    given = parser.parse_args()
    before = given.file.read_text(encoding="utf-8")
    after = documented(before)
    if not given.check:
        given.file.write_text(after, encoding="utf-8")
    elif before != after:
        sys.exit(f"{given.file} is not what the code says: run make docs")


def documented(text: str) -> str:
    """The page with its table as the code has it."""
    table = "\n".join(["<!-- table: calls -->", *_lines(), "<!-- end -->"])
    return _TABLE.sub(lambda _: table, text)


def _lines() -> Iterator[str]:
    yield f"| call | {' | '.join(Scope)} | the token's tenant is that of |"
    yield f"|---|{'---|' * len(Scope)}---|"
    for method, request in requests():
        scopes = SCOPES_OF_METHODS[method]
        marks = " | ".join("x" if scope in scopes else "" for scope in Scope)
        yield f"| `{method.rpartition('.')[2]}` | {marks} | {_compared(method, request)} |"


def requests() -> Iterator[tuple[str, Descriptor]]:
    """Each call of the contracts by its full name, and the type of what it is sent."""
    for name in _FILES:
        file = import_module(f"trinity.api.v1.{name}_pb2").DESCRIPTOR
        for service in file.services_by_name.values():
            for method in service.methods:
                yield f"{service.full_name}/{method.name}", method.input_type


def _compared(method: str, request: Descriptor) -> str:
    """What of a request must be the token's own."""
    if method in WHOLE_PROCESS_METHODS:
        return "everybody: `*`"
    if paths_to(request, TENANT):
        what = "the request"
    elif paths_to(request, EXPERIMENT):
        what = "the experiment"
    else:
        what = "none: a producer's id, which only itself knows"
    return f"{what}; the role is a scope of it" if paths_to(request, ROLE) else what


if __name__ == "__main__":
    main()
