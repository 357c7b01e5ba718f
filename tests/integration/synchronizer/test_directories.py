"""Runs of two tenants never write to the same directory."""

import asyncio
import json

import grpc

from tests.integration.synchronizer.builders import TWO_STAGES, creation
from tests.integration.synchronizer.conftest import Running
from trinity.api.v1 import synchronizer_pb2 as pb


def creation_in(directory: str, tenant: str) -> pb.CreateExperimentRequest:
    plan = json.loads(TWO_STAGES) | {"job_dir": directory}
    return creation(json.dumps(plan), tenant=tenant)


async def test_of_two_tenants_with_one_directory_only_one_is_taken(synchronizer: Running) -> None:
    tenants = ("left", "right")
    answers = await asyncio.gather(
        *(synchronizer.created(creation_in("/runs/a", tenant)) for tenant in tenants),
        return_exceptions=True,
    )
    (refusal,) = [answer for answer in answers if isinstance(answer, grpc.aio.AioRpcError)]
    assert refusal.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "another tenant's experiment works in /runs/a: give" in str(refusal.details())
    refused = tenants[answers.index(refusal)]
    assert not (await synchronizer.created(creation_in("/runs/b", refused))).resumed
    assert (await synchronizer.created(creation_in("/runs/b", refused))).resumed
