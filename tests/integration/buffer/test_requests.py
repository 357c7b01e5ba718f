"""Malformed requests are refused with what is wrong, and nothing else happens."""

import hashlib
import uuid
from collections.abc import AsyncIterator

import grpc
import pytest

from services.buffer.servicer.common import MAX_BLOB_BYTES
from tests.integration.buffer.harness import Buffer
from trinity.api.v1 import buffer_pb2 as pb
from trinity.api.v1.experience_pb2 import RunResult, RunResultBatch
from trinity.runtime.rpc.limits import CHUNK_BYTES, MAX_REQUEST_BYTES

TIMEOUT = 20.0
SOME_ID = str(uuid.uuid4())
KEY = pb.StageKey(tenant="t", experiment_id=SOME_ID, stage="rft")


def key(**changes: str) -> pb.StageKey:
    changed = pb.StageKey()
    changed.CopyFrom(KEY)
    for name, value in changes.items():
        setattr(changed, name, value)
    return changed


def beginning(of: pb.StageKey) -> pb.BeginIncarnationRequest:
    return pb.BeginIncarnationRequest(key=of, trainer_id=SOME_ID)


TOO_LARGE = [
    (
        "RenewLeases",
        pb.RenewLeasesRequest(key=KEY, explorer_id=SOME_ID, leases=[pb.Lease()] * 10_001),
        "leases: at most 10000",
    ),
    (
        "ReportStep",
        pb.ReportStepRequest(key=KEY, metrics={str(i): 0.0 for i in range(10_001)}),
        "metrics: at most 10000",
    ),
    (
        "OpenStage",
        pb.OpenStageRequest(key=KEY, plan_json="x" * (1024 * 1024 + 1)),
        "plan_json has more than 1048576 characters",
    ),
]
MALFORMED = [
    ("BeginIncarnation", beginning(key(tenant="")), "key.tenant"),
    ("BeginIncarnation", beginning(key(tenant="\u00e9" * 251)), "key.tenant"),
    ("BeginIncarnation", beginning(key(stage="a\x0bb")), "key.stage"),
    ("BeginIncarnation", beginning(key(experiment_id="x" * 10_000)), "key.experiment_id"),
    ("BeginIncarnation", pb.BeginIncarnationRequest(key=KEY, trainer_id="x"), "trainer_id"),
    (
        "RenewLeases",
        pb.RenewLeasesRequest(
            key=KEY, explorer_id=SOME_ID, leases=[pb.Lease(assignment_id="x")], lease_seconds=1
        ),
        "leases.assignment_id",
    ),
    (
        "CommitCheckpoint",
        pb.CommitCheckpointRequest(key=KEY, checkpoint=pb.Checkpoint(step=1, path="a\x00")),
        "checkpoint.path",
    ),
    (
        "CommitCheckpoint",
        pb.CommitCheckpointRequest(key=KEY, checkpoint=pb.Checkpoint(step=1, path="a")),
        "checkpoint.manifest_sha256",
    ),
    (
        "RecordVersion",
        pb.RecordVersionRequest(key=KEY, version=pb.PublishedVersion(version=-1)),
        "version.version",
    ),
    ("GetBufferStatus", pb.GetBufferStatusRequest(tenant="a\x00"), "tenant"),
    ("ReportStep", pb.ReportStepRequest(key=KEY, metrics={"n" * 501: 0.0}), "metrics"),
]


@pytest.mark.parametrize(("call", "request_", "named"), MALFORMED)
async def test_a_malformed_request_is_refused_by_the_fields_name(
    buffer: Buffer, call: str, request_: object, named: str
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await getattr(buffer.stub, call)(request_, timeout=TIMEOUT)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT, refused.value
    assert named in str(refused.value.details()) and len(str(refused.value.details())) < 300


@pytest.mark.parametrize(("call", "request_", "named"), TOO_LARGE)
async def test_what_is_too_large_is_refused_with_the_limit(
    buffer: Buffer, call: str, request_: object, named: str
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await getattr(buffer.stub, call)(request_, timeout=TIMEOUT)
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED, refused.value
    assert named in str(refused.value.details())


async def test_a_message_over_the_limit_is_refused_with_it(buffer: Buffer) -> None:
    request = pb.OpenStageRequest(key=KEY, plan_json="x" * (MAX_REQUEST_BYTES + 1))
    with pytest.raises(grpc.aio.AioRpcError, match=str(MAX_REQUEST_BYTES)) as refused:
        await buffer.stub.OpenStage(request, timeout=TIMEOUT)
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_a_blob_over_the_limit_is_refused_with_it(buffer: Buffer) -> None:
    async def stream() -> AsyncIterator[pb.UploadBlobRequest]:
        for _ in range(MAX_BLOB_BYTES // CHUNK_BYTES + 1):
            yield pb.UploadBlobRequest(tenant="t", sha256=bytes(32), chunk=bytes(CHUNK_BYTES))

    with pytest.raises(grpc.aio.AioRpcError, match=str(MAX_BLOB_BYTES)) as refused:
        await buffer.stub.UploadBlob(stream(), timeout=TIMEOUT)
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_results_of_too_many_parts_are_refused_before_anybody_waits_for_them(
    buffer: Buffer,
) -> None:
    """Its producer hears of it: on the stream nobody could say whose it was."""
    content = RunResultBatch(results=[RunResult()] * 600_000).SerializeToString()

    async def stream() -> AsyncIterator[pb.UploadBlobRequest]:
        digest = hashlib.sha256(content).digest()
        for first in range(0, len(content), CHUNK_BYTES):
            chunk = content[first : first + CHUNK_BYTES]
            yield pb.UploadBlobRequest(tenant="t", sha256=digest, chunk=chunk)

    with pytest.raises(grpc.aio.AioRpcError, match="more than 200,000 parts") as refused:
        await buffer.stub.UploadBlob(stream(), timeout=TIMEOUT)
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_rows_that_nest_too_deep_are_refused_one_by_one(buffer: Buffer) -> None:
    async def stream() -> AsyncIterator[pb.SubmitTasksetRequest]:
        header = pb.TasksetHeader(tenant="t", name=SOME_ID, request_id=SOME_ID)
        yield pb.SubmitTasksetRequest(header=header)
        rows = ('{"a": ' * 100_000, '{"prompt": "1"}', "[" * 1_000_000)
        for place, row in enumerate(rows):
            yield pb.SubmitTasksetRequest(row=pb.TaskRow(json=row), num_before=place)
        yield pb.SubmitTasksetRequest(end=pb.TasksetEnd(), num_before=len(rows))

    answer = await buffer.stub.SubmitTaskset(stream(), timeout=TIMEOUT)
    assert (answer.num_stored, answer.num_refused) == (1, 2)
