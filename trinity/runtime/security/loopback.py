"""Recognizes loopback hosts; imports nothing from this project, as other environments use it."""

import ipaddress


def is_loopback(host: str) -> bool:
    """Returns true if the host is certainly this machine; names other than localhost are not."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
