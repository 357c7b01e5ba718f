"""With retention on, contents do not grow with the steps."""

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path

import grpc
import psycopg
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.support.model_free.experiment import experiment_plan, start_experiment
from tests.support.model_free.stack import model_free_stack
from trinity.api.v1 import buffer_pb2 as pb
from trinity.api.v1.buffer_pb2_grpc import BufferServiceStub
from trinity.config.plan.stage_plan import ExperimentPlan
from trinity.runtime.rpc.channel import open_channel
from trinity.runtime.security.secret_files import SecretFiles

STEPS, LOOK_INTERVAL = 40, 4
BATCH_SIZE, REPEAT_TIMES = 8, 2
SAVE_INTERVAL, KEPT_CHECKPOINTS = 5, 2
PROMPT_CHARACTERS = 2_000
READY_SECONDS = 240.0
SIZES = """
    SELECT sum(pg_total_relation_size(pg_class.oid)), count(*) FROM pg_class
    JOIN pg_namespace ON pg_namespace.oid = relnamespace
    WHERE nspname = 'buffer' AND relkind = 'r' AND relname LIKE 'payload%'
"""
pytestmark = pytest.mark.timeout(300)


@dataclass(frozen=True, slots=True)
class Look:
    """The contents of samples after a train step, with indexes and what is stored out of line."""

    step: int
    num_bytes: int
    num_partitions: int


async def test_contents_stay_as_they_are_while_steps_go_by(tmp_path: Path) -> None:
    looks = await grow(plan_of(tmp_path))
    assert [look.step for look in looks] == list(range(LOOK_INTERVAL, STEPS + 1, LOOK_INTERVAL))
    a_step = looks[0].num_bytes / looks[0].step
    # Two checkpoints are kept, the steps since the older one, and what comes next.
    most = (3 * SAVE_INTERVAL + 2) * a_step
    assert max(look.num_bytes for look in looks) < most < STEPS * a_step / 2
    assert max(look.num_partitions for look in looks) < STEPS / 2


def plan_of(root: Path) -> ExperimentPlan:
    tasks = root / "long.jsonl"
    rows = [{"prompt": f"{i}: ".ljust(PROMPT_CHARACTERS, "+")} for i in range(64)]
    tasks.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return experiment_plan(
        root,
        model={"max_prompt_tokens": 2 * PROMPT_CHARACTERS},
        buffer={
            "batch_size": BATCH_SIZE,
            "total_steps": STEPS,
            "keep_steps": 0,
            "explorer_input": {"taskset": {"path": str(tasks)}},
        },
        trainer={"save_interval": SAVE_INTERVAL, "max_checkpoints_to_keep": KEPT_CHECKPOINTS},
    )


async def grow(plan: ExperimentPlan) -> list[Look]:
    """Runs it to its end, with a partition for each step."""
    settings = {"TRINITY_BUFFER_SEGMENT_MAX_ROWS": str(BATCH_SIZE * REPEAT_TIMES)}
    async with model_free_stack(plan.job_path, environment={"buffer": settings}) as stack:
        secrets = SecretFiles(plan.job_path / "infra" / "secrets").folder
        dsn = (secrets / "buffer-postgres-dsn").read_text().strip()
        experiment = await start_experiment(stack.addresses.synchronizer, plan)
        request = pb.WatchProgressRequest(tenant=plan.tenant, experiment_id=experiment.id)
        looks: list[Look] = []
        async with open_channel(stack.addresses.buffer) as channel:
            async with asyncio.timeout(READY_SECONDS):
                await until_serving(channel, "trinity.api.v1.BufferService")
            async for answer in BufferServiceStub(channel).WatchProgress(request):
                for event in answer.events:
                    if event.step.step and event.step.step % LOOK_INTERVAL == 0:
                        looks.append(await asyncio.to_thread(look, dsn, event.step.step))
                if looks and looks[-1].step == STEPS:
                    break
        return looks


async def until_serving(channel: grpc.aio.Channel, service: str) -> None:
    """Wait until it can answer; its process, the empty name, serves before its tables are made."""
    request = health_pb2.HealthCheckRequest(service=service)
    async for answer in health_pb2_grpc.HealthStub(channel).Watch(request, wait_for_ready=True):
        if answer.status == health_pb2.HealthCheckResponse.SERVING:
            return


def look(dsn: str, step: int) -> Look:
    with psycopg.connect(dsn) as connection:
        row = connection.execute(SIZES).fetchone()
    assert row is not None
    return Look(step=step, num_bytes=int(row[0]), num_partitions=int(row[1]))
