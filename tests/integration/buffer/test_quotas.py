"""A tenant that has as much as it may is told so, and others go on."""

import hashlib
import uuid
from collections.abc import AsyncIterator

import grpc
import pytest

from tests.integration.buffer.process import BufferProcess
from trinity.api.v1 import buffer_pb2 as pb
from trinity.api.v1.buffer_pb2_grpc import BufferServiceStub
from trinity.errors import QuotaExceeded, TooLarge
from trinity.rpc.channel import open_channel
from trinity.rpc.errors import error_of

SECONDS = 30.0
BLOB = b"\x0a\x02hi" * 20


@pytest.fixture
def own_settings() -> dict[str, str]:
    return {
        "TRINITY_BUFFER_TENANT_BLOB_BYTES": "100",
        "TRINITY_BUFFER_TENANT_TASKSET_BYTES": "40",
        "TRINITY_BUFFER_TENANT_TASKSETS": "2",
        "TRINITY_BUFFER_TENANT_UPLOADS": "2",
    }


@pytest.fixture
async def stub(own_process: BufferProcess) -> AsyncIterator[BufferServiceStub]:
    async with open_channel(own_process.address) as channel:
        yield BufferServiceStub(channel)


async def upload(stub: BufferServiceStub, tenant: str, content: bytes) -> None:
    request = pb.UploadBlobRequest(
        tenant=tenant, sha256=hashlib.sha256(content).digest(), chunk=content
    )
    await stub.UploadBlob(iter([request]), timeout=SECONDS)


async def submit(stub: BufferServiceStub, tenant: str, name: str, *rows: str) -> None:
    header = pb.TasksetHeader(tenant=tenant, name=name, request_id=str(uuid.uuid4()))
    requests = [
        pb.SubmitTasksetRequest(header=header),
        pb.SubmitTasksetRequest(rows=pb.TaskRows(json=rows)),
        pb.SubmitTasksetRequest(end=pb.TasksetEnd(), num_before=len(rows)),
    ]
    await stub.SubmitTaskset(iter(requests), timeout=SECONDS)


def told(error: grpc.aio.AioRpcError) -> str:
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED, error.details()
    assert isinstance(error_of(error), QuotaExceeded), "a client may try again later"
    return str(error.details())


async def test_quotas_hold_for_one_tenant_and_name_their_setting(stub: BufferServiceStub) -> None:
    await upload(stub, "a", BLOB)
    with pytest.raises(grpc.aio.AioRpcError) as blobs:
        await upload(stub, "a", BLOB + BLOB[:4])
    assert "tenant a has 80 bytes of results" in told(blobs.value)
    assert "TRINITY_BUFFER_TENANT_BLOB_BYTES" in told(blobs.value)
    await upload(stub, "b", BLOB)

    await submit(stub, "a", "first", '{"q": "1"}')
    with pytest.raises(grpc.aio.AioRpcError) as bytes_of_tasks:
        await submit(stub, "a", "second", '{"q": "%s"}' % ("x" * 40))
    assert "TENANT_TASKSET_BYTES" in told(bytes_of_tasks.value)
    with pytest.raises(grpc.aio.AioRpcError) as tasksets:
        await submit(stub, "a", "third", '{"q": "3"}')
    assert "a has 2 submitted tasksets" in told(tasksets.value)
    await submit(stub, "b", "first", '{"q": "1"}')


def test_what_is_too_large_is_not_tried_again() -> None:
    """The control: the same code without a quota."""

    class Refusal(grpc.RpcError):  # type: ignore[misc]
        def code(self) -> grpc.StatusCode:
            return grpc.StatusCode.RESOURCE_EXHAUSTED

        def details(self) -> str:
            return "a blob may have at most 67108864 bytes"

    assert isinstance(error_of(Refusal()), TooLarge)
