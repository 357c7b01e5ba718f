"""Reads the JSON bodies of requests within bounds: time, bytes, and UTF-8 alone."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message

from starlette.requests import Request

from services.explorer.openai_api.errors import InvalidApiRequest
from trinity.runtime.json_values import parse_untrusted

BODY_SECONDS = 30.0
MAX_BODY_BYTES = 16 << 20
MAX_BODIES_BYTES = 256 << 20
"""Limit of all bodies of an address that are being read at the same time."""
UTF_8 = ("utf-8", "utf8")


@dataclass(eq=False, slots=True)
class _Upload:
    """A body that is being read."""

    limit: asyncio.Timeout
    content: bytearray = field(default_factory=bytearray)


class BodyReader:
    """Reads the bodies of one address.

    A slow body ends after `seconds`. If all together exceed `max_bytes`, the largest is given up:
    so clients that send much and slowly do not keep the requests of others out.

        body = await bodies.read_json(request)
    """

    def __init__(self, *, seconds: float = BODY_SECONDS, max_bytes: int = MAX_BODIES_BYTES) -> None:
        self._seconds = seconds
        self._max_bytes = max_bytes
        self._uploads: set[_Upload] = set()

    async def read_json(self, request: Request) -> object:
        """Returns the parsed body; raises InvalidApiRequest."""
        _check_headers(request)
        return parse_json(await self._read(request))

    async def _read(self, request: Request) -> bytes:
        try:
            async with asyncio.timeout(self._seconds) as limit:
                with self._upload(limit) as upload:
                    async for chunk in request.stream():
                        upload.content += chunk
                        self._check_sizes(upload)
                    return bytes(upload.content)
        except TimeoutError as error:
            raise InvalidApiRequest(
                f"the body did not arrive within {self._seconds:.0f} s, or many large bodies "
                "arrived at the same time: send it again",
                code="request_timeout",
                status=408,
            ) from error

    @contextmanager
    def _upload(self, limit: asyncio.Timeout) -> Iterator[_Upload]:
        upload = _Upload(limit)
        self._uploads.add(upload)
        try:
            yield upload
        finally:
            self._uploads.remove(upload)

    def _check_sizes(self, upload: _Upload) -> None:
        if len(upload.content) > MAX_BODY_BYTES:
            raise InvalidApiRequest(
                f"the body has more than {MAX_BODY_BYTES >> 20} MiB", status=413
            )
        if sum(len(upload.content) for upload in self._uploads) > self._max_bytes:
            largest = max(self._uploads, key=lambda upload: len(upload.content))
            largest.content = bytearray()
            largest.limit.reschedule(asyncio.get_running_loop().time())


def _check_headers(request: Request) -> None:
    """Refuses other encodings than UTF-8: decoding some of them takes quadratic time."""
    if (given := request.headers.get("content-type", "")) != "application/json":
        content_type = Message()  # slow
        content_type["content-type"] = given
        if content_type.get_content_charset(UTF_8[0]) not in UTF_8:
            raise InvalidApiRequest("a body is JSON in UTF-8: leave out `charset`")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise InvalidApiRequest("a body is not compressed here: leave out `Content-Encoding`")


def parse_json(content: bytes) -> object:
    """Parses a body; raises InvalidApiRequest if it is not text or not JSON."""
    try:
        return parse_untrusted(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise InvalidApiRequest(f"the body is not UTF-8: {error.reason}") from error
    except ValueError as error:
        raise InvalidApiRequest(f"the body is not JSON: {error}") from error
