"""What a killed launcher left running does not take the services from what is started next."""

import asyncio
from pathlib import Path

import pytest

from tests.support.model_free.experiment import experiment_plan, start_experiment
from tests.support.model_free.stack import model_free_services, model_free_stack
from trinity.api.v1 import synchronizer_pb2 as pb
from trinity.api.v1.synchronizer_pb2_grpc import SynchronizerServiceStub
from trinity.config.plan.stage_plan import ExperimentPlan
from trinity.run.launch.resume import REASON
from trinity.run.launch.run import LocalRun
from trinity.run.launch.stored_runs import find_experiment
from trinity.run.local.stack import LocalStack
from trinity.run.progress.reporter import make_reporter
from trinity.runtime.rpc.channel import open_channel

pytestmark = pytest.mark.timeout(300)

PATIENCE_SECONDS = 120.0


async def stored(stack: LocalStack, plan: ExperimentPlan) -> pb.Experiment:
    async with open_channel(stack.addresses.synchronizer) as channel:
        stub = SynchronizerServiceStub(channel)
        found = await find_experiment(stub, plan.tenant, plan.label)
    assert found is not None
    return found


async def test_what_is_started_beside_it_gets_the_services_and_it_can_go_on(
    tmp_path: Path,
) -> None:
    left = experiment_plan(tmp_path, name="left", buffer={"total_steps": 1_000_000})
    beside = experiment_plan(tmp_path, name="beside", buffer={"total_steps": 1})
    async with model_free_stack(left.job_path) as stack:
        await start_experiment(stack.addresses.synchronizer, left)
    beside.job_path.mkdir(parents=True)
    run = LocalRun(
        plan=beside,
        reporter=make_reporter(beside.label),
        home=left.job_path,
        services=model_free_services(),
    )
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert (await run.run_to_end()).state == "finished"
    async with model_free_stack(left.job_path) as stack:
        cancelled = await stored(stack, left)
        assert cancelled.state == pb.EXPERIMENT_STATE_CANCELLED
        assert cancelled.reason == REASON
        resumed = await start_experiment(stack.addresses.synchronizer, left)
        assert resumed.state == pb.EXPERIMENT_STATE_RUNNING
