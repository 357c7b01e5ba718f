"""From one stage to the next."""

import asyncio

import grpc
import pytest

from tests.integration.synchronizer.builders import finished, publication, weights
from tests.integration.synchronizer.conftest import TIMEOUT, Running
from trinity.api.v1 import synchronizer_pb2 as pb


async def started(synchronizer: Running) -> str:
    """An experiment whose second stage runs."""
    experiment_id = (await synchronizer.created()).experiment.id
    request = finished(experiment_id, "warmup", pb.ROLE_TRAINER, weights("warmup", 5))
    answer = await synchronizer.stub.FinishRole(request, timeout=TIMEOUT)
    assert answer.state == pb.STAGE_STATE_FINISHED
    return experiment_id


async def test_the_next_stage_starts_when_every_role_is_done(synchronizer: Running) -> None:
    experiment = await synchronizer.experiment(await started(synchronizer))
    assert experiment.stages[0].state == pb.STAGE_STATE_FINISHED
    assert experiment.stages[0].final_version == weights("warmup", 5)
    assert experiment.stages[1].state == pb.STAGE_STATE_RUNNING


async def test_a_stage_waits_for_all_of_its_roles(synchronizer: Running) -> None:
    experiment_id = await started(synchronizer)
    trainer = finished(experiment_id, "rft", pb.ROLE_TRAINER, weights("rft", 9))
    explorer = finished(experiment_id, "rft", pb.ROLE_EXPLORER)
    answer = await synchronizer.stub.FinishRole(trainer, timeout=TIMEOUT)
    assert answer.state == pb.STAGE_STATE_RUNNING
    answer = await synchronizer.stub.FinishRole(explorer, timeout=TIMEOUT)
    assert answer.state == pb.STAGE_STATE_FINISHED
    experiment = await synchronizer.experiment(experiment_id)
    assert experiment.state == pb.EXPERIMENT_STATE_FINISHED
    assert experiment.stages[1].final_version == weights("rft", 9)


async def test_roles_that_finish_at_the_same_time_end_the_stage_once(
    synchronizer: Running, replica: Running
) -> None:
    experiment_id = await started(synchronizer)
    requests = [
        finished(experiment_id, "rft", pb.ROLE_TRAINER, weights("rft", 9)),
        finished(experiment_id, "rft", pb.ROLE_EXPLORER),
    ] * 4
    stubs = [synchronizer.stub, replica.stub] * 4
    await asyncio.gather(
        *(s.FinishRole(r, timeout=TIMEOUT) for s, r in zip(stubs, requests, strict=True))
    )
    experiment = await synchronizer.experiment(experiment_id)
    assert experiment.state == pb.EXPERIMENT_STATE_FINISHED
    assert len(experiment.stages[1].finished_roles) == 2


async def test_finishing_a_role_may_be_retried(synchronizer: Running) -> None:
    experiment_id = await started(synchronizer)
    request = finished(experiment_id, "warmup", pb.ROLE_TRAINER, weights("warmup", 5))
    answer = await synchronizer.stub.FinishRole(request, timeout=TIMEOUT)
    assert answer.state == pb.STAGE_STATE_FINISHED
    experiment = await synchronizer.experiment(experiment_id)
    assert experiment.stages[1].state == pb.STAGE_STATE_RUNNING
    assert not experiment.stages[1].finished_roles


@pytest.mark.parametrize(
    ("request_", "code", "word"),
    [
        (
            finished("", "rft", pb.ROLE_EXPLORER),
            grpc.StatusCode.FAILED_PRECONDITION,
            "not started",
        ),
        (finished("", "warmup", pb.ROLE_EXPLORER), grpc.StatusCode.INVALID_ARGUMENT, "no part"),
        (
            finished("", "warmup", pb.ROLE_TRAINER),
            grpc.StatusCode.INVALID_ARGUMENT,
            "final_version",
        ),
        (
            finished("", "warmup", pb.ROLE_TRAINER, weights("rft", 1)),
            grpc.StatusCode.INVALID_ARGUMENT,
            "final_version.stage",
        ),
        (finished("", "dpo", pb.ROLE_EXPLORER), grpc.StatusCode.NOT_FOUND, "dpo"),
    ],
)
async def test_a_role_that_cannot_have_finished_is_refused(
    synchronizer: Running, request_: pb.FinishRoleRequest, code: grpc.StatusCode, word: str
) -> None:
    experiment = (await synchronizer.created()).experiment
    request = pb.FinishRoleRequest()
    request.CopyFrom(request_)
    request.experiment_id = experiment.id
    with pytest.raises(grpc.aio.AioRpcError) as refusal:
        await synchronizer.stub.FinishRole(request, timeout=TIMEOUT)
    assert refusal.value.code() is code
    assert word in (refusal.value.details() or "")
    assert await synchronizer.experiment(experiment.id) == experiment


async def test_a_trainer_with_a_successor_cannot_end_the_stage(synchronizer: Running) -> None:
    experiment_id = (await synchronizer.created()).experiment.id
    newer = publication(experiment_id, weights("warmup", 2, incarnation=2))
    await synchronizer.stub.PublishVersion(newer, timeout=TIMEOUT)
    stale = finished(experiment_id, "warmup", pb.ROLE_TRAINER, weights("warmup", 5))
    with pytest.raises(grpc.aio.AioRpcError) as refusal:
        await synchronizer.stub.FinishRole(stale, timeout=TIMEOUT)
    assert refusal.value.code() is grpc.StatusCode.ABORTED
    experiment = await synchronizer.experiment(experiment_id)
    assert experiment.stages[0].state == pb.STAGE_STATE_RUNNING
