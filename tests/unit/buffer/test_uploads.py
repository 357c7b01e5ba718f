"""Uploads share a room in memory."""

from collections.abc import AsyncIterator

import pytest

from services.buffer.servicer.common import UploadMemoryBudget
from trinity.api.v1 import buffer_pb2 as pb
from trinity.errors import InvalidRequest, QuotaExceeded, Unavailable
from trinity.runtime.rpc.limits import CHUNK_BYTES
from trinity.runtime.rpc.quotas import QuotaUse, TenantQuota

HASH = b"\x01" * 32


async def chunks(
    *sizes: int, tenant: str = "t", sha256: bytes = HASH
) -> AsyncIterator[pb.UploadBlobRequest]:
    for size in sizes:
        yield pb.UploadBlobRequest(tenant=tenant, sha256=sha256, chunk=bytes(size))


async def test_room_is_taken_and_given_back() -> None:
    room = UploadMemoryBudget(max_bytes=100)
    async with room.receive(chunks(40, 40)) as upload:
        assert (upload.tenant, upload.sha256, len(upload.body)) == ("t", HASH, 80)
        with pytest.raises(Unavailable, match="too many uploads"):
            async with room.receive(chunks(10, 11)):
                pass
    async with room.receive(chunks(100)) as upload:
        assert len(upload.body) == 100


async def test_a_tenant_takes_its_part_of_the_room_and_leaves_the_rest() -> None:
    quota = TenantQuota.parse("50", what="bytes that arrive", variable="VARIABLE")
    room = UploadMemoryBudget(max_bytes=100, of_tenants=QuotaUse(quota))
    async with room.receive(chunks(40)):
        with pytest.raises(QuotaExceeded, match="tenant t has 40 bytes that arrive, and 11 more"):
            async with room.receive(chunks(11)):
                pass
        async with room.receive(chunks(40, tenant="other")) as upload:
            assert len(upload.body) == 40
        async with room.receive(chunks(10)):
            pass
    async with room.receive(chunks(50)) as upload:
        assert len(upload.body) == 50


@pytest.mark.parametrize(
    "requests",
    [
        chunks(),
        chunks(1, tenant=""),
        chunks(1, tenant="a.b"),
        chunks(1, tenant="x" * 501),
        chunks(1, sha256=b"short"),
        chunks(CHUNK_BYTES + 1),
    ],
)
async def test_what_is_no_upload_is_refused(requests: AsyncIterator[pb.UploadBlobRequest]) -> None:
    with pytest.raises(InvalidRequest):
        async with UploadMemoryBudget().receive(requests):
            pass
