"""Fetches the image of a link: the name is resolved once, and private addresses are refused."""

import asyncio
import ipaddress
import socket
from collections.abc import Callable

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from trinity.data.images import MAX_IMAGE_BYTES, BadImage

FETCH_SECONDS = 20.0
CHUNK_BYTES = 1 << 16
OK = 200
Allows = Callable[[str], bool]
"""Returns true for an address that may be connected to."""


async def fetch(url: str, host: str, allows: Allows) -> bytes:
    """Returns the content behind a link, without redirects and proxies.

    Raises: BadImage.
    """
    try:
        return await _fetched(url, host, allows)
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
        raise BadImage(f"the link to {host!r} cannot be read: {error}") from error


async def _fetched(url: str, host: str, allows: Allows) -> bytes:
    if _is_address(host) and not allows(host):  # no resolver is asked for it
        raise _private(host)
    connector = aiohttp.TCPConnector(resolver=CheckedResolver(allows))
    timeout = aiohttp.ClientTimeout(total=FETCH_SECONDS)
    async with (
        aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
        session.get(url, allow_redirects=False) as response,
    ):
        if response.status != OK:
            raise BadImage(f"{host!r} answers {response.status}, and redirects are not followed")
        content = bytearray()
        async for chunk in response.content.iter_chunked(CHUNK_BYTES):
            content += chunk
            if len(content) > MAX_IMAGE_BYTES:
                raise BadImage(f"it has more than {MAX_IMAGE_BYTES:,} bytes: make it smaller")
        return bytes(content)


class CheckedResolver(AbstractResolver):
    """Resolves a name; the connection goes to the very addresses that were checked."""

    def __init__(self, allows: Allows) -> None:
        self._allows = allows

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Returns the addresses of a host.

        Raises: BadImage when one of them is not allowed; OSError.
        """
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, family=family)
        addresses = [str(place[0]) for *_, place in found]
        if not all(map(self._allows, addresses)):
            raise _private(host)
        return [
            ResolveResult(hostname=host, host=address, port=port, family=own, proto=0, flags=0)
            for (own, *_), address in zip(found, addresses, strict=True)
        ]

    async def close(self) -> None:
        """Closes nothing."""


def _private(host: str) -> BadImage:
    return BadImage(f"{host!r} leads to a private address: give the image itself")


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
