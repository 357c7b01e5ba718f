"""The trainer service with real ranks, against peers that live in the test."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import psutil
import pytest

from examples.addition.model import save_model
from tests.integration.trainer.peers import Peers, rollout_rows, serve_peers, text_rows
from trinity.api.v1 import trainer_pb2, trainer_pb2_grpc
from trinity.config import Config, ExperimentPlan, plan_experiment
from trinity.local.ports import free_port
from trinity.manifest import verify

ROWS, VOCABULARY, STEPS = 16, 256, 6


def plan_in(directory: Path, model: Path, **trainer: object) -> ExperimentPlan:
    """A supervised stage, then one on rollouts."""
    data = directory / "rows.jsonl"
    data.write_text(json.dumps({"prompt": "1+1=", "response": "2"}) + "\n")
    rows = {"name": "rows", "storage_type": "file", "path": str(data)}
    rows |= {"format": {"prompt_type": "plaintext"}}
    tasks = {"name": "tasks", "path": str(data), "default_workflow_type": "math_workflow"}
    adam = {"lr": 1e-3}
    sft = {
        "stage_name": "sft",
        "mode": "train",
        "algorithm": {"algorithm_type": "sft", "optimizer": adam},
        "buffer": {
            "train_batch_size": ROWS,
            "total_steps": STEPS,
            "trainer_input": {"experience_buffer": rows},
        },
    }
    rft = {
        "stage_name": "rft",
        "mode": "both",
        "algorithm": {"algorithm_type": "grpo", "repeat_times": 8, "optimizer": adam},
        "buffer": {
            "batch_size": 2,
            "total_steps": STEPS,
            "explorer_input": {"taskset": tasks},
        },
        "synchronizer": {"sync_interval": 2},
    }
    lengths = {"max_prompt_tokens": 32, "max_response_tokens": 16}
    shared = {"dtype": "float32", "rank_num": 1, "max_token_len_per_gpu": 8192, "save_interval": 3}
    return plan_experiment(
        Config.model_validate(
            {
                "checkpoint_root_dir": str(directory / "checkpoints"),
                "model": {"model_path": str(model), **lengths},
                "trainer": shared | trainer,
                "cluster": {"node_num": 1, "gpu_per_node": 0},
                "stages": [sft, rft],
            }
        )
    )


def peers_of(plan: ExperimentPlan) -> Peers:
    """Peers that have rows for every step."""
    return Peers(
        plan,
        {
            "sft": lambda step: text_rows(step, ROWS),
            "rft": lambda step: rollout_rows(step, ROWS, VOCABULARY),
        },
    )


@asynccontextmanager
async def running_service(peers: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """The service's process and address; killed, with its ranks, if the test has not ended it."""
    address = f"127.0.0.1:{free_port()}"
    settings = {"LISTEN": address, "BUFFER": peers, "SYNCHRONIZER": peers}
    environment = {f"TRINITY_TRAINER_{name}": value for name, value in settings.items()}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "services.trainer",
        env=os.environ | environment | {"OMP_NUM_THREADS": "1"},
    )
    try:
        yield process, address
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def stop(process: asyncio.subprocess.Process) -> int:
    process.terminate()
    return await asyncio.wait_for(process.wait(), 20)


def ranks_of(process: asyncio.subprocess.Process) -> list[psutil.Process]:
    children = psutil.Process(process.pid).children(recursive=True)
    return [child for child in children if "services.trainer.rank" in " ".join(child.cmdline())]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("addition")
    save_model(directory, seed=0)
    return directory


async def final_hashes(plan: ExperimentPlan, disturb: Callable[..., object] | None) -> list[bytes]:
    """Hashes of both stages' final weights."""
    peers = peers_of(plan)
    async with serve_peers(peers) as address, running_service(address) as (process, _):
        if disturb is not None:
            await disturb(peers, process)  # type: ignore[misc]
        await peers.until(lambda: peers.is_finished or bool(peers.failure))
        assert peers.failure == ""
        assert await stop(process) == 0
    check_what_a_run_leaves(peers, plan)
    return [stage.final_version.weights_sha256 for stage in peers.experiment.stages]


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
        stage = peers.stages[name]
        await peers.until(lambda stage=stage, step=step: stage.recorded_step >= step)
        for rank in ranks_of(process):
            rank.send_signal(signal.SIGKILL)


async def test_a_killed_rank_resumes_into_the_same_weights(tmp_path: Path, model: Path) -> None:
    (tmp_path / "calm").mkdir()
    (tmp_path / "rough").mkdir()
    calm = await final_hashes(plan_in(tmp_path / "calm", model), None)
    rough = await final_hashes(plan_in(tmp_path / "rough", model), kill_the_rank_twice)
    assert rough == calm
    assert calm[0] != calm[1]


async def test_an_unreadable_model_fails_the_stage_with_one_sentence(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "config.json").write_text("{}")
    peers = peers_of(plan_in(tmp_path, broken))
    async with serve_peers(peers) as address, running_service(address) as (process, own):
        await peers.until(lambda: bool(peers.failure))
        assert "stage `sft`" in peers.failure
        assert str(broken) in peers.failure
        assert "\n" not in peers.failure
        await check_service_is_light(process, own)
        await check_no_rank_outlives_a_killed_service(process)


async def check_service_is_light(process: asyncio.subprocess.Process, address: str) -> None:
    """It answers, and torch lives in the ranks only."""
    async with grpc.aio.insecure_channel(address) as channel:
        stub = trainer_pb2_grpc.TrainerServiceStub(channel)
        answer = await stub.GetTrainerStatus(trainer_pb2.GetTrainerStatusRequest(), timeout=5)
    assert answer.trainer_id
    libraries = psutil.Process(process.pid).memory_maps()
    assert not [library.path for library in libraries if "libtorch" in library.path]


async def check_no_rank_outlives_a_killed_service(process: asyncio.subprocess.Process) -> None:
    ranks = ranks_of(process)
    process.kill()
    await process.wait()
    _, alive = await asyncio.to_thread(psutil.wait_procs, ranks, 10)
    assert alive == []
