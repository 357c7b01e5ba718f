"""A tenant that has as much as it may is told so, and others go on."""

import hashlib
import uuid
from collections.abc import AsyncIterator

import grpc
import psycopg
import pytest

from services.buffer.domain.tasks import CHUNK_ROWS
from tests.integration.buffer.harness import talk_to
from tests.integration.buffer.process import BufferProcess
from tests.integration.buffer.test_client_sessions import begin, opened, turn_of
from tests.integration.buffer.test_sessions import COMMITTED, REJECTED, settle
from trinity.api.v1 import buffer_pb2 as pb
from trinity.api.v1.buffer_pb2_grpc import BufferServiceStub
from trinity.errors import QuotaExceeded, TooLarge
from trinity.runtime.rpc.channel import open_channel
from trinity.runtime.rpc.errors import error_of

SECONDS = 30.0
BLOB = b"\x0a\x02hi" * 20


@pytest.fixture
def own_settings() -> dict[str, str]:
    return {
        "TRINITY_BUFFER_TENANT_BLOB_BYTES": "100, large=4KiB",
        "TRINITY_BUFFER_TENANT_TASKSET_BYTES": "40, d=1200",
        "TRINITY_BUFFER_TENANT_TASKSETS": "2",
        "TRINITY_BUFFER_TENANT_UPLOADS": "2",
        "TRINITY_BUFFER_TENANT_SESSIONS": "2",
        "TRINITY_BUFFER_TENANT_SESSION_BYTES": "200",
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


async def submit(
    stub: BufferServiceStub,
    tenant: str,
    name: str,
    *rows: str,
    is_queue: bool = False,
    request_id: str = "",
) -> None:
    request_id = request_id or str(uuid.uuid4())
    header = pb.TasksetHeader(tenant=tenant, name=name, request_id=request_id, is_queue=is_queue)
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
    await upload(stub, "a", BLOB)  # a retry of what is stored takes no more
    await upload(stub, "b", BLOB)
    await upload(stub, "large", BLOB * 20)

    await submit(stub, "a", "first", '{"q": "1"}')
    with pytest.raises(grpc.aio.AioRpcError) as bytes_of_tasks:
        await submit(stub, "a", "second", '{"q": "%s"}' % ("x" * 40))
    assert "TENANT_TASKSET_BYTES" in told(bytes_of_tasks.value)
    with pytest.raises(grpc.aio.AioRpcError) as tasksets:
        await submit(stub, "a", "third", '{"q": "3"}')
    assert "a has 2 submitted tasksets" in told(tasksets.value)
    await submit(stub, "b", "first", '{"q": "1"}')


async def test_tasks_are_measured_in_bytes_and_queues_go_on_at_the_limit(
    stub: BufferServiceStub,
) -> None:
    await submit(stub, "c", "queue", '{"q": "1"}', is_queue=True)
    await submit(stub, "c", "second", "{}")
    with pytest.raises(grpc.aio.AioRpcError) as tasksets:
        await submit(stub, "c", "third", "{}")
    assert "c has 2 submitted tasksets, and 1 more would exceed its limit of 2" in told(
        tasksets.value
    )
    await submit(stub, "c", "queue", "{}", is_queue=True)
    with pytest.raises(grpc.aio.AioRpcError) as bytes_of_tasks:
        await submit(stub, "c", "queue", '{"q": "%s"}' % ("\N{SNOWMAN}" * 8), is_queue=True)
    assert "c has 14 bytes of submitted tasks, and 33 more" in told(bytes_of_tasks.value)


async def test_a_retry_of_stored_tasks_takes_no_more(stub: BufferServiceStub) -> None:
    header = pb.TasksetHeader(tenant="d", name="first", request_id=str(uuid.uuid4()))
    rows = pb.TaskRows(json=["{}"] * CHUNK_ROWS)
    broken_off = [
        pb.SubmitTasksetRequest(header=header),
        pb.SubmitTasksetRequest(rows=rows),
    ]
    for _ in range(3):
        with pytest.raises(grpc.aio.AioRpcError, match="without an `end`"):
            await stub.SubmitTaskset(iter(broken_off), timeout=SECONDS)
    end = pb.SubmitTasksetRequest(end=pb.TasksetEnd(), num_before=CHUNK_ROWS)
    stored = await stub.SubmitTaskset(iter([*broken_off, end]), timeout=SECONDS)
    assert stored.num_stored == CHUNK_ROWS
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await submit(stub, "d", "second", *(["{}"] * CHUNK_ROWS))
    assert "d has 1,000 bytes of submitted tasks, and 1,000 more" in told(refused.value)


def test_what_is_too_large_is_not_tried_again() -> None:
    """The control: the same code without a quota."""

    class Refusal(grpc.RpcError):  # type: ignore[misc]
        def code(self) -> grpc.StatusCode:
            return grpc.StatusCode.RESOURCE_EXHAUSTED

        def details(self) -> str:
            return "a blob may have at most 67108864 bytes"

    assert isinstance(error_of(Refusal()), TooLarge)


async def test_clients_have_so_many_sessions_and_bytes(
    own_process: BufferProcess, buffer_dsn: str
) -> None:
    token = str(uuid.uuid4())
    async with talk_to(own_process) as buffer:
        await begin(buffer)
        first = await opened(buffer, token, name="a")
        await opened(buffer, token, name="b")
        with pytest.raises(grpc.aio.AioRpcError) as sessions:
            await opened(buffer, token, name="c")
        assert "has 2 sessions of clients, and 1 more would exceed" in told(sessions.value)
        assert "go on with one of them by its name" in told(sessions.value)
        await opened(buffer, token, name="a")
        with psycopg.connect(buffer_dsn) as connection:
            connection.execute("UPDATE session SET opened_at = now() - interval '8 days'")
        await opened(buffer, token, name="d")
        turn = turn_of(buffer, first.session_id, token)
        turn.payload = bytes(200)
        assert [report.state for report in await settle(buffer, turn)] == [COMMITTED]
        with pytest.raises(grpc.aio.AioRpcError) as stored:
            await opened(buffer, token, name="e")
        assert "200 bytes in runs with clients" in told(stored.value)
        further = turn_of(buffer, first.session_id, token, 1)
        [report] = await settle(buffer, further)
        assert report.state == REJECTED and report.reason.startswith("quota: tenant")
        assert [report.state for report in await settle(buffer, turn)] == [COMMITTED], "sent again"
