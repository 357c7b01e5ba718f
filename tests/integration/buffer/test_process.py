"""The process: what it weighs, what it never loads, how it starts and stops."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import alembic.command
import grpc
import psycopg
import pytest

from services.buffer.migrations import MIGRATIONS
from tests.integration.buffer.harness import Buffer
from tests.integration.buffer.made import Made
from tests.integration.buffer.plans import rollout_plan
from tests.integration.buffer.process import BufferProcess
from tests.support.forking.starts import run_module
from trinity.api.v1 import buffer_pb2 as pb
from trinity.errors import UserError

MAX_RESIDENT_MIB = 250
HEAVY = ("torch", "transformers", "datasets", "pyarrow", "pandas", "vllm", "ray")


def peak_mib(pid: int) -> float:
    """The most memory that the process ever held."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    line = next(line for line in lines if line.startswith("VmHWM:"))
    return float(line.split()[1]) / 1024


async def test_thousands_of_runs_fit_into_a_small_process(
    own_buffer: Buffer, own_process: BufferProcess, tmp_path: Path
) -> None:
    plan = rollout_plan(tmp_path, num_eval=3000, total_steps=1)
    await own_buffer.open(plan)
    await own_buffer.begin()
    await own_buffer.record(0)
    work = list((await own_buffer.lease(4000)).assignments)
    for start in range(0, len(work), 50):
        results = [
            own_buffer.complete(one, run, Made(num_tokens=600))
            for one in work[start : start + 50]
            for run in one.runs
        ]
        await own_buffer.publish(*results)
    await own_buffer.fates(*range(1, own_buffer.sequence + 1))
    done = (await own_buffer.events("evaluation"))[-1].evaluation
    assert done.num_tasks == 3000
    assert own_process.process is not None
    assert peak_mib(own_process.process.pid) < MAX_RESIDENT_MIB


async def test_large_blobs_that_waited_fit_into_a_small_process(
    own_buffer: Buffer, own_process: BufferProcess, tmp_path: Path
) -> None:
    await own_buffer.open(rollout_plan(tmp_path, num_eval=24))
    await own_buffer.begin()
    await own_buffer.record(0)
    digests = []
    for one in (await own_buffer.lease()).assignments:
        for run in one.runs:
            result = own_buffer.complete(one, run, Made(num_tokens=400_000))
            digests.append(await own_buffer.upload(own_buffer.batch_of([result])))
    own_process.kill()
    for digest in digests:
        await own_buffer.publish_reference(digest)
    await own_process.start()
    await own_buffer.fates(*range(1, own_buffer.sequence + 1))
    assert own_process.process is not None
    assert peak_mib(own_process.process.pid) < MAX_RESIDENT_MIB


async def test_large_messages_that_waited_fit_into_a_small_process(
    own_buffer: Buffer, own_process: BufferProcess, tmp_path: Path
) -> None:
    plan = rollout_plan(tmp_path, num_eval=96, total_steps=1)
    await own_buffer.open(plan)
    await own_buffer.begin()
    await own_buffer.record(0)
    work = list((await own_buffer.lease(200)).assignments)
    own_process.kill()
    for one in work:
        for run in one.runs:
            await own_buffer.publish(own_buffer.complete(one, run, Made(num_tokens=110_000)))
    await own_process.start()
    await own_buffer.fates(*range(1, own_buffer.sequence + 1))
    assert own_process.process is not None
    assert peak_mib(own_process.process.pid) < MAX_RESIDENT_MIB


def test_the_buffer_needs_no_tensor_library() -> None:
    blocked = "; ".join(f"sys.modules[{name!r}] = None" for name in HEAVY)
    code = f"import sys; {blocked}; import services.buffer.__main__"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


async def test_it_stops_in_order_while_calls_wait(
    own_buffer: Buffer, own_process: BufferProcess, tmp_path: Path
) -> None:
    await own_buffer.open(rollout_plan(tmp_path))
    waiting = asyncio.ensure_future(own_buffer.lease(wait_seconds=60))
    watching = asyncio.ensure_future(own_buffer.fates(1))
    await own_buffer.status()
    assert await own_process.stop() == 0
    answer = await waiting
    assert answer.state == pb.LeaseAssignmentsResponse.STATE_WAITING
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await watching
    assert error.value.code() == grpc.StatusCode.UNAVAILABLE


async def test_garbage_is_an_invalid_argument(buffer: Buffer) -> None:
    for request in (
        pb.OpenStageRequest(key=buffer.pb_key, plan_json="{}"),
        pb.OpenStageRequest(plan_json="x"),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await buffer.stub.OpenStage(request, timeout=10)
        assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await buffer.lease()
    assert error.value.code() == grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"TRINITY_BUFFER_NATS_ULR": "x"}, "TRINITY_BUFFER_NATS_ULR"),
        (
            {"TRINITY_BUFFER_POSTGRES_DSN": "postgresql://buffer:x@127.0.0.1:1/db"},
            "does not answer",
        ),
        ({"TRINITY_BUFFER_NATS_URL": "nats://127.0.0.1:1"}, "broker at 127.0.0.1:1"),
        ({"TRINITY_BUFFER_MIGRATE_ON_START": "false"}, "python -m services.buffer migrate"),
    ],
)
def test_a_mistake_in_the_settings_is_one_sentence(
    buffer_dsn: str, nats_url: str, settings: dict[str, str], sentence: str
) -> None:
    environment = {
        **os.environ,
        "TRINITY_BUFFER_POSTGRES_DSN": buffer_dsn,
        "TRINITY_BUFFER_NATS_URL": nats_url,
        "TRINITY_BUFFER_MIGRATE_ON_START": "true",
        "TRINITY_BUFFER_CONNECT_SECONDS": "0.5",
        **settings,
    }
    done = run_module("services.buffer", env=environment)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert done.stderr.strip().count("\n") == 0


def test_migrations_go_up_and_down_and_match_the_tables(buffer_dsn: str) -> None:
    MIGRATIONS.upgrade(buffer_dsn)
    MIGRATIONS.downgrade(buffer_dsn)
    with pytest.raises(UserError, match="migrate"):
        MIGRATIONS.check_newest(buffer_dsn)
    MIGRATIONS.upgrade(buffer_dsn)
    MIGRATIONS.check_newest(buffer_dsn)
    with MIGRATIONS.connected(buffer_dsn) as (config, _):
        alembic.command.check(config)


def test_a_schema_of_another_program_is_refused(buffer_dsn: str) -> None:
    MIGRATIONS.upgrade(buffer_dsn)
    with psycopg.connect(buffer_dsn, autocommit=True) as connection:
        connection.execute("UPDATE buffer.alembic_version SET version_num = 'future'")
    with pytest.raises(UserError, match="future"):
        MIGRATIONS.check_newest(buffer_dsn)
