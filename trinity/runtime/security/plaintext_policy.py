"""Addresses that may be used in plaintext: those that do not leave this machine."""

import urllib.parse
from collections.abc import Iterable

from trinity.errors import UserError
from trinity.runtime.security.credentials import VARIABLE
from trinity.runtime.security.loopback import is_loopback

CHECKED_BY_NAME = ("verify-ca", "verify-full")
SOCKETS = ("/", "@")
"""Prefixes by which libpq recognizes a socket of this machine."""


def refuse_plain_service(address: str) -> None:
    """Refuses the address of a service beyond loopback.

    Raises: UserError.
    """
    host = address.rpartition(":")[0]
    if not is_loopback(host) and not address.startswith("unix:"):
        raise UserError(
            f"refusing to speak to {address} without TLS and a token: set {VARIABLE} to a folder "
            "that `trinity certs` has made"
        )


def refuse_plain_broker(url: str, is_secure: bool) -> None:
    """Refuses a broker beyond loopback without TLS or user.

    Raises: UserError.
    """
    for address in url.split(","):
        parts = urllib.parse.urlsplit(address if "//" in address else f"nats://{address}")
        host = parts.hostname or ""
        if is_loopback(host):
            continue
        if parts.scheme != "tls" or not is_secure:
            raise UserError(
                f"refusing to speak to the broker at {host} without TLS: write its address as "
                f"tls://user:password@host:port and set {VARIABLE}"
            )
        if not parts.username:
            raise UserError(
                f"refusing to speak to the broker at {host} without a user: write its address as "
                "tls://user:password@host:port"
            )


def refuse_plain_database(hosts: Iterable[str], ssl_mode: str) -> None:
    """Refuses a database beyond loopback whose certificate is not verified.

    Raises: UserError.
    """
    if ssl_mode in CHECKED_BY_NAME:
        return
    for host in hosts:
        if host and not is_loopback(host) and not host.startswith(SOCKETS):
            raise UserError(
                f"refusing to speak to the database at {host} without TLS: add "
                "?sslmode=verify-full&sslrootcert=PATH to its address"
            )
