"""The images of a tenant: read from the buffer and stored there, the newest kept in memory."""

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Protocol

from trinity.data.images import (
    BadImage,
    content_of,
    image_of,
    is_image_part,
    no_file,
    part_of,
    parts_of,
    ref_of,
)
from trinity.errors import Unavailable
from trinity.runtime.retry import Retry
from trinity.types import BlobRef, JsonObject

KEPT_BYTES = 512 * 1024 * 1024
AWAY_SECONDS = 30.0
"""Time that a run waits for a buffer that is away."""
STORED_SECONDS = 3600.0
"""An image that is given again after this time is stored again, as unused ones are deleted."""


class MediaClient(Protocol):
    """The buffer's calls about images."""

    async def read_media(self, tenant: str, hashes: Sequence[bytes]) -> dict[bytes, bytes]: ...

    async def upload_blob(self, tenant: str, content: bytes, media_type: str = "") -> bytes: ...


class UnstoredMedia:
    """The images of a served model, which has no buffer: only the memory of a `MediaStore`."""

    async def read_media(self, tenant: str, hashes: Sequence[bytes]) -> dict[bytes, bytes]:
        """Raises: BadImage."""
        del tenant
        raise BadImage(f"the image {hashes[0].hex()} is not kept here any more: send it again")

    async def upload_blob(self, tenant: str, content: bytes, media_type: str = "") -> bytes:
        """Stores nothing."""
        del tenant, media_type
        return hashlib.sha256(content).digest()


class MediaStore:
    """Reads and stores images of one tenant.

    media = MediaStore(client, "default")
    messages = await media.resolve(messages)   # data URLs and PIL images become hashes
    contents = await media.read([ref.sha256 for ref in images_of(messages)])
    """

    def __init__(self, client: MediaClient, tenant: str, *, kept_bytes: int = KEPT_BYTES) -> None:
        self._client = client
        self._tenant = tenant
        self._left_bytes = kept_bytes
        self._kept: OrderedDict[bytes, bytes] = OrderedDict()
        self._stored_at: dict[bytes, float] = {}

    async def read(self, hashes: Sequence[bytes]) -> dict[bytes, bytes]:
        """Returns the contents by hash.

        Raises: PreconditionFailed when one of them is not in use there; Unavailable.
        """
        found = {sha256: self._kept[sha256] for sha256 in hashes if sha256 in self._kept}
        if missing := [sha256 for sha256 in dict.fromkeys(hashes) if sha256 not in found]:
            read = await _retry().call_async(lambda: self._client.read_media(self._tenant, missing))
            for sha256, content in read.items():
                self._keep(sha256, content)
            found |= read
        for sha256 in found:
            if sha256 in self._kept:
                self._kept.move_to_end(sha256)
        return found

    async def put(self, content: bytes) -> BlobRef:
        """Stores an image, once an hour at most.

        Raises: BadImage; QuotaExceeded; Unavailable.
        """
        image = await asyncio.to_thread(image_of, content)
        sha256, now = image.ref.sha256, time.monotonic()
        if now - self._stored_at.get(sha256, -STORED_SECONDS) >= STORED_SECONDS:
            await _retry().call_async(
                lambda: self._client.upload_blob(self._tenant, content, image.ref.media_type)
            )
            self._stored_at = {
                own: at for own, at in self._stored_at.items() if now - at < STORED_SECONDS
            }
            self._stored_at[sha256] = now
        self._keep(sha256, content)
        return image.ref

    async def resolve(self, messages: Sequence[Any]) -> list[Any]:
        """Returns a chat whose images are stored; messages without images stay the same objects.

        Raises: as `put`, with the number of the message, from 0.
        """
        return [await self._resolved(message, place) for place, message in enumerate(messages)]

    async def _resolved(self, message: Any, place: int) -> Any:
        parts = parts_of(message.get("content")) if isinstance(message, dict) else ()
        if all(not is_image_part(part) or ref_of(part) is not None for part in parts):
            return message
        try:
            return {**message, "content": [await self._part(part) for part in parts]}
        except BadImage as error:
            raise BadImage(f"message {place}: its image: {error}") from error

    async def _part(self, part: Any) -> JsonObject:
        if not is_image_part(part) or ref_of(part) is not None:
            own: JsonObject = part
            return own
        return part_of(await self.put(content_of(part, no_file)))

    def _keep(self, sha256: bytes, content: bytes) -> None:
        if sha256 in self._kept or len(content) > KEPT_BYTES:
            return
        self._kept[sha256] = content
        self._left_bytes -= len(content)
        while self._left_bytes < 0:
            self._left_bytes += len(self._kept.popitem(last=False)[1])


def _retry() -> Retry:
    return Retry(seconds=AWAY_SECONDS, timeout_error=Unavailable)
