"""Two runs never write to the same directory."""

import asyncio
import json

import grpc
import pytest

from tests.integration.synchronizer.builders import TWO_STAGES, creation
from tests.integration.synchronizer.conftest import Running
from trinity.api.v1 import synchronizer_pb2 as pb


def creation_in(directory: str, tenant: str, *, label: str = "sums") -> pb.CreateExperimentRequest:
    plan = json.loads(TWO_STAGES) | {"job_dir": directory}
    return creation(json.dumps(plan), tenant=tenant, label=label)


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


async def test_whatever_they_are_called_only_one_is_taken(synchronizer: Running) -> None:
    await synchronizer.created(creation_in("/runs/t/a/x", "left", label="t/a/x"))
    for tenant, who in (("right", "another tenant's experiment"), ("left", "experiment 't/a/x'")):
        with pytest.raises(grpc.aio.AioRpcError, match=f"{who} works in /runs/t/a/x: give"):
            await synchronizer.created(creation_in("/runs/t/a/../a/x/", tenant, label="a/x"))


async def test_a_run_that_went_on_elsewhere_leaves_its_directory_to_others(
    synchronizer: Running,
) -> None:
    await synchronizer.created(creation_in("/runs/old", "left"))
    await synchronizer.created(creation_in("/runs/new", "left"))
    await synchronizer.created(creation_in("/runs/old", "right"))
    with pytest.raises(grpc.aio.AioRpcError, match="another tenant's experiment"):
        await synchronizer.created(creation_in("/runs/new", "right", label="b"))
