"""Writes the table of calls in docs/security.md from the scopes.

python -m trinity.runtime.security.document docs/security.md [--check]
"""

from collections.abc import Iterator
from importlib import import_module

from google.protobuf.descriptor import Descriptor

from trinity.runtime.doc_tables import fill_tables, write_page
from trinity.runtime.security.authorization import (
    EXPERIMENT,
    ROLE,
    SCOPES_OF_METHODS,
    TENANT,
    WHOLE_PROCESS_METHODS,
    Scope,
    field_paths,
)

_FILES = ("synchronizer", "buffer", "query", "taskset", "explorer", "trainer")


def main() -> None:
    """Writes the table, or with --check exits on a difference."""
    write_page("The scopes of every call, as Markdown.", render_page)


def render_page(text: str) -> str:
    """Returns the page with its table generated from the code."""
    return fill_tables(text, lambda _: _lines())


def _lines() -> Iterator[str]:
    yield f"| call | {' | '.join(Scope)} | the token's tenant is that of |"
    yield f"|---|{'---|' * len(Scope)}---|"
    for method, request in requests():
        scopes = SCOPES_OF_METHODS[method]
        marks = " | ".join("x" if scope in scopes else "" for scope in Scope)
        yield f"| `{method.rpartition('.')[2]}` | {marks} | {_compared(method, request)} |"


def requests() -> Iterator[tuple[str, Descriptor]]:
    """Yields each call of the contracts by its full name, with its request type."""
    for name in _FILES:
        file = import_module(f"trinity.api.v1.{name}_pb2").DESCRIPTOR
        for service in file.services_by_name.values():
            for method in service.methods:
                yield f"{service.full_name}/{method.name}", method.input_type


def _compared(method: str, request: Descriptor) -> str:
    """Returns the part of a request that must match the token."""
    if method in WHOLE_PROCESS_METHODS:
        return "all tenants: `*`"
    if field_paths(request, TENANT):
        what = "the request"
    elif field_paths(request, EXPERIMENT):
        what = "the experiment"
    else:
        what = "none: a producer's id, known only to itself"
    return f"{what}; the role is a scope of it" if field_paths(request, ROLE) else what


if __name__ == "__main__":
    main()
