"""Addresses of the form host:port, in which an IPv6 address stands in brackets."""

import socket

from trinity.errors import UserError

MAX_PORT = 65_535


def join_address(host: str, port: int) -> str:
    """Returns the address as clients take it: `127.0.0.1:50051`, `[::1]:50051`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_address(address: str) -> tuple[str, int]:
    """Splits `host:port`; the host is without brackets.

    Raises: UserError when it is not of that form.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not (port.isascii() and port.isdigit()) or int(port) > MAX_PORT:
        raise UserError(f"address {address!r} is not host:port")
    is_bracketed = host.startswith("[") and host.endswith("]")
    if ":" in host and not is_bracketed:
        raise UserError(
            f"address {address!r}: write an IPv6 address in brackets, as in [::1]:50051"
        )
    return host.strip("[]") or "127.0.0.1", int(port)


def own_address(peer: str = "192.0.2.1") -> str:
    """Returns the address by which this machine reaches others; the loopback one without a network.

    Nothing is sent: connecting a datagram socket only chooses the interface. Without a peer it is
    that to an address reserved for documentation.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((peer, 9))
        except OSError:
            return "127.0.0.1"
        address: str = probe.getsockname()[0]
        return address
