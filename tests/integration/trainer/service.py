"""An experiment to train, the peers of its trainer, and the trainer's service as a process."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.integration.trainer.peer_rows import rollout_rows, text_rows
from tests.integration.trainer.peers import Peers
from trinity.api.v1 import synchronizer_pb2
from trinity.config.plan.stage_plan import ExperimentPlan
from trinity.config.planning import plan_experiment
from trinity.config.schema.experiment import Config
from trinity.run.local.addresses import free_port

ROWS, VOCABULARY, STEPS = 16, 256, 6
FINISHED = synchronizer_pb2.STAGE_STATE_FINISHED
Disturb = Callable[[Peers, asyncio.subprocess.Process], Awaitable[None]]


def plan_in(
    directory: Path, model: Path, sync_timeout: float = 3600.0, **trainer: Any
) -> ExperimentPlan:
    """A supervised stage, then one on rollouts with all that a checkpoint can hold.

    Each step on rollouts has three updates of uneven size.
    """
    data = directory / "rows.jsonl"
    data.write_text(json.dumps({"prompt": "1+1=", "response": "2"}) + "\n")
    rows: dict[str, object] = {"name": "rows", "storage_type": "file", "path": str(data)}
    rows |= {"format": {"prompt_type": "plaintext"}}
    tasks = {"name": "tasks", "path": str(data), "default_workflow_type": "math_workflow"}
    adam = {"lr": 1e-3}
    steered = {"kl_coef": 0.1, "adaptive": True, "target_kl": 1e-3, "horizon": 10 * ROWS}
    ppo = {"algorithm_type": "ppo", "kl_penalty_fn": "k2", "kl_penalty_fn_args": steered}
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
        "algorithm": {**ppo, "repeat_times": 8, "optimizer": adam},
        "buffer": {
            "batch_size": 2,
            "train_batch_size": 7,
            "train_step": "explore_step",
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
                "synchronizer": {"sync_timeout": sync_timeout},
                "stages": [sft, rft],
            }
        )
    )


def peers_of(plan: ExperimentPlan, vocabulary: int = VOCABULARY) -> Peers:
    """Peers that have rows for every step."""
    return Peers(
        plan,
        {
            "sft": lambda step: text_rows(step, ROWS),
            "rft": lambda step: rollout_rows(step, ROWS, vocabulary),
        },
    )


def peers_of_four(directory: Path, model: Path) -> Peers:
    """Peers of a trainer with four ranks, whose experiment gets a new directory."""
    directory.mkdir()
    return peers_of(plan_in(directory, model, rank_num=4, save_interval=2))


async def final_weights(peers: Peers, seconds: float) -> bytes:
    """Waits until the stage is finished; returns the hash of its last weights."""
    await peers.until(
        lambda: peers.experiment.stages[0].state == FINISHED or bool(peers.failure), seconds
    )
    assert peers.failure == ""
    return peers.experiment.stages[0].final_version.weights_blake3


@asynccontextmanager
async def running_service(
    peers: str, address: str = "", **more: str
) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """The service's process and address; killed, with its ranks, if the test has not ended it."""
    address = address or f"127.0.0.1:{free_port()}"
    settings = {"LISTEN": address, "BUFFER": peers, "SYNCHRONIZER": peers, **more}
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
    async with asyncio.timeout(20):
        return await process.wait()
