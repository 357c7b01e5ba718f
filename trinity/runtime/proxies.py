"""Keeps proxies of the environment away from addresses of this machine."""

import os
from collections.abc import MutableMapping

LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "::1", "[::1]")
"""Clients differ in how they write an IPv6 address without its port."""
_PROXIES = frozenset(f"{scheme}_proxy" for scheme in ("http", "https", "all", "grpc"))
_EXCEPTIONS = ("no_proxy", "NO_PROXY")
_GRPC_EXCEPTIONS = "no_grpc_proxy"
"""Where it is set, gRPC reads it in the place of the others."""


def reach_loopback_directly(environment: MutableMapping[str, str] = os.environ) -> None:
    """Adds the hosts of this machine to the exceptions, for libraries and child processes.

    A proxy reaches its own loopback, not this machine's: requests to a model, a collector of spans
    or a judge on this machine would go to the proxy's machine.
    """
    if not any(environment[name] for name in environment if name.lower() in _PROXIES):
        return
    given = next((environment[name] for name in _EXCEPTIONS if environment.get(name)), "")
    for name in _EXCEPTIONS:
        environment[name] = _with_loopback(given)
    if environment.get(_GRPC_EXCEPTIONS):
        environment[_GRPC_EXCEPTIONS] = _with_loopback(environment[_GRPC_EXCEPTIONS])


def _with_loopback(given: str) -> str:
    hosts = [host.strip() for host in given.split(",") if host.strip()]
    return ",".join(hosts + [host for host in LOOPBACK_HOSTS if host not in hosts])
