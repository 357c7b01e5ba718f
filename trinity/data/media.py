"""Images that are stored under their hashes."""

from collections.abc import Iterable

from trinity.api.v1 import buffer_pb2
from trinity.api.v1.buffer_pb2_grpc import BufferServiceStub

_SECONDS = 60.0


async def read_media(
    stub: BufferServiceStub, tenant: str, hashes: Iterable[bytes]
) -> dict[bytes, bytes]:
    """Returns the contents of images that a tenant uses, by hash."""
    contents = {sha256: bytearray() for sha256 in hashes}
    request = buffer_pb2.ReadMediaRequest(tenant=tenant, sha256=contents)
    async for response in stub.ReadMedia(request, timeout=_SECONDS):
        contents[response.sha256] += response.chunk
    return {sha256: bytes(content) for sha256, content in contents.items()}
