"""Allowed addresses of a Data-Juicer server, which has no authentication."""

from urllib.parse import urlsplit

from trinity.errors import UserError
from trinity.runtime.security.loopback import is_loopback


def check_address(url: str) -> None:
    """Raises UserError for an invalid address, or if rows would leave this machine without TLS."""
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UserError(
            f"Data-Juicer's server_url {url!r} is no address like http://127.0.0.1:8005"
        )
    if parts.scheme == "http" and not is_loopback(parts.hostname):
        raise UserError(
            f"refusing to connect to Data-Juicer at {parts.hostname} without TLS: run its server "
            "beside the buffer and give http://127.0.0.1:PORT, or give the https:// address of a "
            "proxy that authenticates clients"
        )
