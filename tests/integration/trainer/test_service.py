"""The trainer service with real ranks, against peers that live in the test."""

import asyncio
from pathlib import Path

import grpc
import psutil
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from examples.addition.model import save_model
from tests.integration.trainer.peers import serve_peers
from tests.integration.trainer.service import (
    peers_of,
    plan_in,
    running_service,
)
from tests.support.ranks import ranks_of
from trinity.api.v1 import trainer_pb2, trainer_pb2_grpc

pytestmark = pytest.mark.timeout(900)

SECONDS = 300.0
"""Ranks take their time to import verl on a machine that does other things as well."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("addition")
    save_model(directory, seed=0)
    return directory


async def test_an_unreadable_model_fails_the_stage_with_one_sentence(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "config.json").write_text("{}")
    peers = peers_of(plan_in(tmp_path, broken))
    async with serve_peers(peers) as address, running_service(address) as (process, own):
        await peers.until(lambda: bool(peers.failure), SECONDS)
        assert "stage `sft`" in peers.failure
        assert str(broken) in peers.failure
        assert "\n" not in peers.failure
        await check_service_is_light(process, own)
        await check_service_is_live_and_ready(own)
        await check_no_rank_outlives_a_killed_service(process)


async def check_service_is_light(process: asyncio.subprocess.Process, address: str) -> None:
    """It answers, and torch lives in the ranks only."""
    async with grpc.aio.insecure_channel(address) as channel:
        stub = trainer_pb2_grpc.TrainerServiceStub(channel)
        answer = await stub.GetTrainerStatus(trainer_pb2.GetTrainerStatusRequest(), timeout=5)
    assert answer.trainer_id
    libraries = psutil.Process(process.pid).memory_maps()
    assert not [library.path for library in libraries if "libtorch" in library.path]


async def check_service_is_live_and_ready(address: str) -> None:
    """The process lives, and both its peers answer."""
    async with grpc.aio.insecure_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        for service in ("", "trinity.api.v1.TrainerService"):
            request = health_pb2.HealthCheckRequest(service=service)
            async for answer in stub.Watch(request, timeout=10):
                if answer.status == health_pb2.HealthCheckResponse.SERVING:
                    break


async def check_no_rank_outlives_a_killed_service(process: asyncio.subprocess.Process) -> None:
    ranks = ranks_of(process.pid)
    process.kill()
    await process.wait()
    _, alive = await asyncio.to_thread(psutil.wait_procs, ranks, 10)
    assert alive == []
