"""Free loopback ports, each handed out once per process."""

import random
import socket
from pathlib import Path

_EPHEMERAL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST_PORT = 10_240
_RANDOM = random.SystemRandom()
"""Not the shared generator: programs with the same seed would pick the same ports at once."""
_handed_out: set[int] = set()


def free_port() -> int:
    """Returns an unused loopback port.

    It is below the kernel's range for outgoing connections: otherwise a service that restarts on
    its old port could find it taken by a client that kept retrying.
    """
    ports = _candidates()
    for _ in range(1_000):
        port = _RANDOM.choice(ports)
        if port not in _handed_out and _is_free(port):
            _handed_out.add(port)
            return port
    raise RuntimeError(f"no free loopback port between {ports.start} and {ports.stop - 1}")


def _candidates() -> range:
    ephemeral_start = int(_EPHEMERAL_RANGE.read_text().split()[0])
    if ephemeral_start - _LOWEST_PORT < 1_000:
        return range(_LOWEST_PORT, 65_536)
    return range(_LOWEST_PORT, ephemeral_start)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
