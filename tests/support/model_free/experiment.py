"""An experiment for a stack without a model: its plan, its start, its end and its weights."""

import asyncio
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypedDict, Unpack

import grpc
from pydantic import JsonValue

from tests.support.model_free.model import write_model
from trinity.api.v1 import synchronizer_pb2 as pb
from trinity.api.v1.synchronizer_pb2_grpc import SynchronizerServiceStub
from trinity.config.plan.stage_plan import ExperimentPlan
from trinity.config.planning import plan_experiment
from trinity.config.schema.experiment import Config, deep_merge
from trinity.runtime.rpc.channel import open_channel
from trinity.runtime.security.credentials import Credentials

RETRY_SECONDS = 0.1
CALL_SECONDS = 10.0
WATCH_SECONDS = 30.0
"""Then the watch is opened anew, in case its synchronizer stands still."""
GRPO: Mapping[str, JsonValue] = {"algorithm_type": "grpo"}


class Sections(TypedDict, total=False):
    """Of a configuration, but for what a plan here always says itself."""

    tenant: JsonValue
    mode: JsonValue
    seed: JsonValue
    model: JsonValue
    stages: JsonValue
    cluster: JsonValue
    buffer: JsonValue
    explorer: JsonValue
    trainer: JsonValue
    synchronizer: JsonValue
    monitor: JsonValue
    log: JsonValue
    data_processor: JsonValue


def experiment_plan(
    root: Path,
    *,
    name: str = "run",
    num_tasks: int = 64,
    algorithm: Mapping[str, JsonValue] = GRPO,
    **changes: Unpack[Sections],
) -> ExperimentPlan:
    """One stage `rft` of eight steps, four groups of two a step; `changes` are laid over it.

    Its tasks are at hand as expert rows too, for algorithms that take such.
    """
    values = experiment_values(root, name=name, num_tasks=num_tasks, algorithm=algorithm)
    return plan_experiment(Config.model_validate(deep_merge(values, changes)))


def experiment_values(
    root: Path,
    *,
    name: str,
    num_tasks: int = 64,
    algorithm: Mapping[str, JsonValue] = GRPO,
) -> dict[str, JsonValue]:
    """The configuration of `experiment_plan`, whose data and model are written."""
    data = root / f"{name}.jsonl"
    data.parent.mkdir(parents=True, exist_ok=True)
    rows = [
        {"prompt": f"{i}+{i}=", "response": str(2 * i), "weak": 0.2, "strong": 1 - i / num_tasks}
        for i in range(num_tasks)
    ]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {
        "project": "model-free",
        "name": name,
        "seed": 7,
        "checkpoint_root_dir": str(root / "checkpoints"),
        "model": {
            "model_path": str(write_model(root / "model")),
            "max_prompt_tokens": 64,
            "max_response_tokens": 8,
        },
        "stages": [
            {
                "stage_name": "rft",
                "algorithm": {"repeat_times": 2, "kl_loss_fn": "none", **algorithm},
            }
        ],
        "buffer": {
            "batch_size": 4,
            "total_steps": 8,
            "explorer_input": {
                "default_workflow_type": "simple_workflow",
                "default_reward_fn_type": "tests.support.model_free.reward.LettersReward",
                "taskset": {"name": "train", "path": str(data)},
            },
            "trainer_input": {
                "auxiliary_buffers": {"sft_dataset": {"storage_type": "file", "path": str(data)}}
            },
        },
        "explorer": {"eval_on_startup": False},
        "trainer": {"save_interval": 3, "dtype": "float32"},
    }


async def start_experiment(
    synchronizer: str, plan: ExperimentPlan, security: Credentials | None = None
) -> pb.Experiment:
    """Make the plan's experiment known, or resume it."""
    request = pb.CreateExperimentRequest(
        tenant=plan.tenant, label=plan.label, plan_json=plan.model_dump_json()
    )
    async with open_channel(synchronizer, security) as channel:
        stub = SynchronizerServiceStub(channel)
        answer: pb.CreateExperimentResponse = await stub.CreateExperiment(
            request, timeout=CALL_SECONDS, wait_for_ready=True
        )
        return answer.experiment


async def wait_until_ended(
    synchronizer: str, experiment_id: str, security: Credentials | None = None
) -> pb.Experiment:
    """Its end, through restarts of the synchronizer."""
    request = pb.WatchExperimentRequest(experiment_id=experiment_id)
    async with open_channel(synchronizer, security) as channel:
        stub = SynchronizerServiceStub(channel)
        while True:
            with suppress(grpc.aio.AioRpcError):
                async for now in stub.WatchExperiment(request, timeout=WATCH_SECONDS):
                    if now.experiment.state != pb.EXPERIMENT_STATE_RUNNING:
                        ended: pb.Experiment = now.experiment
                        return ended
            await asyncio.sleep(RETRY_SECONDS)


async def run_to_end(
    synchronizer: str, plan: ExperimentPlan, security: Credentials | None = None
) -> pb.Experiment:
    """Start it and wait for its end."""
    experiment = await start_experiment(synchronizer, plan, security)
    return await wait_until_ended(synchronizer, experiment.id, security)


def giving_up_after(plan: ExperimentPlan, seconds: float) -> ExperimentPlan:
    """The plan with a trainer that waits so long for a batch; no key makes it give up early."""
    stages = []
    for stage in plan.stages:
        buffer = stage.experience_buffer.model_copy(update={"max_read_timeout": seconds})
        stages.append(stage.model_copy(update={"experience_buffer": buffer}))
    return plan.model_copy(update={"stages": tuple(stages)})


def final_weights(experiment: pb.Experiment) -> str:
    """Hash of the weights that the last stage ended with."""
    return experiment.stages[-1].final_version.weights_blake3.hex()
