"""The trainer service with real ranks, against peers that live in the test."""

import asyncio
import signal
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from examples.addition.model import save_model
from tests.integration.trainer.peers import Peers, serve_peers
from tests.integration.trainer.service import (
    STEPS,
    Disturb,
    peers_of,
    plan_in,
    running_service,
    stop,
)
from tests.support.ranks import ranks_of
from trinity.api.v1 import trainer_pb2, trainer_pb2_grpc
from trinity.config.plan.stage_plan import ExperimentPlan
from trinity.weights.manifest import verify

pytestmark = pytest.mark.timeout(900)

SECONDS = 300.0
"""Ranks take their time to import verl on a machine that does other things as well."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("addition")
    save_model(directory, seed=0)
    return directory


async def final_hashes(plan: ExperimentPlan, disturb: Disturb | None) -> list[bytes]:
    """Hashes of both stages' final weights."""
    peers = peers_of(plan)
    async with serve_peers(peers) as address, running_service(address) as (process, _):
        if disturb is not None:
            await disturb(peers, process)
        await peers.until(lambda: peers.is_finished or bool(peers.failure), SECONDS)
        assert peers.failure == ""
        assert await stop(process) == 0
    check_what_a_run_leaves(peers, plan)
    return [stage.final_version.weights_blake3 for stage in peers.experiment.stages]


def check_what_a_run_leaves(peers: Peers, plan: ExperimentPlan) -> None:
    """Final weights and checkpoints verify, and nothing else lies beside the kept ones."""
    for stage in peers.experiment.stages:
        final = stage.final_version
        assert final.version == STEPS
        verify(Path(final.path), final.manifest_sha256)
        root = plan.job_path / "stages" / stage.name
        assert {path.suffix for path in (root / "weights").iterdir()} == {""}
        rows = {Path(row.path) for row in peers.stages[stage.name].checkpoints}
        assert set((root / "checkpoints").iterdir()) == rows
        for row in peers.stages[stage.name].checkpoints:
            verify(Path(row.path), row.manifest_sha256)


async def kill_the_rank_twice(peers: Peers, process: asyncio.subprocess.Process) -> None:
    """Once in each stage, between a checkpoint and the end."""
    for name, step in (("sft", 5), ("rft", 4)):
        await until_recorded(peers, name, step)
        for rank in ranks_of(process.pid):
            rank.send_signal(signal.SIGKILL)


async def until_recorded(peers: Peers, stage: str, step: int) -> None:
    await peers.until(lambda: peers.stages[stage].recorded_step >= step, SECONDS)


PASSES: dict[str, Any] = {
    "ppo_epochs": 2,
    "critic": {
        "ppo_epochs": 3,
        "optimizer": {"optimizer_type": "sgd", "lr_scheduler_type": "linear"},
    },
}
"""The most that a checkpoint holds: also how far an epoch and a schedule of the critic's are."""


@pytest.mark.thorough
async def test_a_killed_rank_resumes_into_the_same_weights(tmp_path: Path, model: Path) -> None:
    (tmp_path / "calm").mkdir()
    (tmp_path / "rough").mkdir()
    calm = await final_hashes(plan_in(tmp_path / "calm", model, **PASSES), None)
    rough = await final_hashes(plan_in(tmp_path / "rough", model, **PASSES), kill_the_rank_twice)
    assert rough == calm
    assert calm[0] != calm[1]


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
