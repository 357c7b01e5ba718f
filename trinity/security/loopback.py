"""Which hosts are this machine; it imports nothing, as environments of others ask it too."""

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether nothing outside this machine is meant; a name may be anything, but for localhost."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
