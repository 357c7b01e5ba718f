"""What a killed explorer held is taken up by the one started in its place, not after its lease."""

import asyncio
import contextlib
import os
import signal
from pathlib import Path

import grpc

from tests.support.model_free.engine import RUN_SECONDS_VARIABLE
from tests.support.model_free.experiment import experiment_plan, start_experiment, wait_until_ended
from tests.support.model_free.stack import model_free_stack
from trinity.api.v1 import buffer_pb2, synchronizer_pb2
from trinity.api.v1.buffer_pb2_grpc import BufferServiceStub
from trinity.rpc.channel import open_channel

LEASE_SECONDS = 600


async def test_work_of_a_killed_explorer_does_not_wait_for_its_lease(tmp_path: Path) -> None:
    plan = experiment_plan(tmp_path, buffer={"total_steps": 2})
    environment = {
        "explorer": {
            RUN_SECONDS_VARIABLE: "1.5",
            "TRINITY_EXPLORER_LEASE_SECONDS": str(LEASE_SECONDS),
        }
    }
    async with model_free_stack(plan.job_path, environment=environment) as stack:
        experiment = await start_experiment(stack.addresses.synchronizer, plan)
        await until_leased(stack.addresses.buffer)
        os.kill(stack.pids["explorer"], signal.SIGKILL)
        ended = await wait_until_ended(stack.addresses.synchronizer, experiment.id)
    assert ended.state == synchronizer_pb2.EXPERIMENT_STATE_FINISHED, ended.reason


async def until_leased(buffer: str) -> None:
    async with open_channel(buffer) as channel:
        stub = BufferServiceStub(channel)
        while True:
            with contextlib.suppress(grpc.aio.AioRpcError):  # its tables are being made
                status = await stub.GetBufferStatus(buffer_pb2.GetBufferStatusRequest(), timeout=10)
                if any(stage.num_leased for stage in status.stages):
                    return
            await asyncio.sleep(0.05)
