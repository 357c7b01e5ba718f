"""Malformed requests are refused with what is wrong, and nothing else happens."""

import uuid
from collections.abc import AsyncIterator

import grpc
import pytest

from tests.integration.buffer.harness import Buffer
from trinity.api.v1 import buffer_pb2 as pb

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


MALFORMED = [
    ("BeginIncarnation", beginning(key(tenant="")), "tenant"),
    ("BeginIncarnation", beginning(key(tenant="\u00e9" * 251)), "tenant"),
    ("BeginIncarnation", beginning(key(stage="a\x0bb")), "stage"),
    ("BeginIncarnation", beginning(key(experiment_id="x" * 10_000)), "experiment_id"),
    ("GetBufferStatus", pb.GetBufferStatusRequest(tenant="a\x00"), "null character"),
    ("GetBufferStatus", pb.GetBufferStatusRequest(tenant="a" * 501), "tenant"),
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


async def test_rows_that_nest_too_deep_are_refused_one_by_one(buffer: Buffer) -> None:
    async def stream() -> AsyncIterator[pb.SubmitTasksetRequest]:
        header = pb.TasksetHeader(tenant="t", name=SOME_ID, request_id=SOME_ID)
        yield pb.SubmitTasksetRequest(header=header)
        for row in ('{"a": ' * 100_000, '{"prompt": "1"}', "[" * 1_000_000):
            yield pb.SubmitTasksetRequest(row=pb.TaskRow(json=row))

    answer = await buffer.stub.SubmitTaskset(stream(), timeout=TIMEOUT)
    assert (answer.num_stored, answer.num_refused) == (1, 2)
