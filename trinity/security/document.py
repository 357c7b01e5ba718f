"""Writes the table of calls in docs/security.md from the scopes.

python -m trinity.security.document docs/security.md [--check]
"""

from collections.abc import Iterator
from importlib import import_module

from google.protobuf.descriptor import Descriptor

from trinity.security.roles import ROLE
from trinity.security.scopes import SCOPES_OF_METHODS, WHOLE_PROCESS_METHODS, Scope
from trinity.security.tenancy import EXPERIMENT, TENANT, paths_to
from trinity.written_pages import fill_tables, write_page

_FILES = ("synchronizer", "buffer", "query", "taskset", "explorer", "trainer")


def main() -> None:
    """Write the table, or say that it is not what the code says."""
    write_page("Who may call what, as Markdown.", documented)


def documented(text: str) -> str:
    """The page with its table as the code has it."""
    return fill_tables(text, lambda _: _lines())


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
