"""Roles that a request claims, read from its fields whatever its type."""

from functools import cache

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message

from trinity.security.scopes import Scope
from trinity.security.tenancy import Path, paths_to, values_at

ROLE = "role"
_PREFIX = "ROLE_"


def roles_of(request: Message) -> set[Scope]:
    """Returns the roles that the request names; a token for it must carry each as a scope.

    An unknown number counts as no role: the service refuses the request.
    """
    found: set[Scope] = set()
    for path in paths_to(request.DESCRIPTOR, ROLE):
        known = _roles_at(request.DESCRIPTOR, path)
        found |= {known[number] for number in values_at(request, path) if number in known}
    return found


@cache
def _roles_at(message: Descriptor, path: Path) -> dict[int, Scope]:
    """Returns the numbers of the enumeration at the path, without the unspecified one."""
    for name in path[:-1]:
        part = message.fields_by_name[name].message_type
        assert part is not None, "a path leads through messages"
        message = part
    roles = message.fields_by_name[path[-1]].enum_type
    assert roles is not None, f"{message.full_name}: a field called `{ROLE}` is of the type Role"
    known = roles.values
    return {
        value.number: Scope(value.name.removeprefix(_PREFIX).lower())
        for value in known
        if value.number
    }
