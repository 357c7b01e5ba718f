"""Tasks go through a pipeline before any of them is explored, and nothing of it is lost."""

import json
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import grpc
import psycopg
import pytest

from services.buffer.tasksets.task_pipeline import PipelineLimits, TaskPipelineProcess
from tests.integration.buffer.harness import Buffer, talk_to
from tests.integration.buffer.process import BufferProcess
from tests.support.data_juicer_server import LongEnough, served
from tests.unit.config.builders import stage
from trinity.api.v1 import buffer_pb2 as pb
from trinity.client import AsyncTasksets
from trinity.config.plan.stage_plan import StagePlan
from trinity.config.schema.base import Args
from trinity.errors import Unavailable
from trinity.operators.tasks.task_pipeline import ResolvedTaskPipeline, TaskOperator
from trinity.user_code.data_juicer import server

OWN = "tests.integration.buffer.own_task_operators"
NUM_ROWS = 2_500
CALL_SECONDS = 1.0


def write(file: Path, num_rows: int = NUM_ROWS, first: int = 0) -> str:
    rows = [
        {"prompt": f"{i}+{i}=", "number": i, "hard": (i * 37) % 100}
        for i in range(first, first + num_rows)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


def plan_of(path: str | None, pipeline: Mapping[str, object], **taskset: object) -> StagePlan:
    given = {"name": "train", "path": path, "format": {"prompt_key": "prompt"}, **taskset}
    return stage(
        buffer={"batch_size": 4, "explorer_input": {"taskset": given}},
        data_processor={"task_pipeline": pipeline},
    )


FILTERED = {
    "operators": [
        {"name": f"{OWN}.odd_ones"},
        {"name": "column_score", "args": {"column": "hard", "score": "difficulty"}},
    ],
    "priority_weights": {"difficulty": 1.0},
    "top_k": 1_000,
}


async def tasks_of(buffer: Buffer, plan: StagePlan) -> list[int]:
    """The numbers of the first tasks that are handed out."""
    await buffer.open(plan)
    await buffer.begin()
    await buffer.record(0)
    granted = (await buffer.lease()).assignments
    return [json.loads(one.task_json)["number"] for one in granted]


async def test_tasks_are_filtered_and_ordered_and_it_is_said_what_was_left_out(
    buffer: Buffer, tmp_path: Path, tasksets: AsyncTasksets
) -> None:
    plan = plan_of(write(tmp_path / "train.jsonl"), FILTERED)
    hardest_first = sorted(range(1, NUM_ROWS, 2), key=lambda i: (-(i * 37 % 100), i))
    assert await tasks_of(buffer, plan) == hardest_first[:4]
    [piped] = (await buffer.status()).task_pipelines
    assert (piped.taskset, piped.num_rows, piped.counts.num_read) == ("train", 1_000, NUM_ROWS)
    assert [(one.reason, one.num_rows) for one in piped.counts.left_out] == [
        (f"{OWN}.odd_ones: it is even", 1_250),
        ("top_k: beyond the first 1000", 250),
    ]
    [known] = [one for one in await tasksets.list() if str(tmp_path) in one.source]
    found = await tasksets.get(known.taskset_id, first_row=0, num_rows=2)
    assert found.source_rows == tuple(hardest_first[:2])
    assert found.pipeline is not None and found.pipeline.ordered_by == {"difficulty": 1.0}


async def test_submitted_tasks_go_through_it_and_stay_as_they_were(
    buffer: Buffer, tasksets: AsyncTasksets
) -> None:
    rows = [{"prompt": str(i), "number": i, "hard": 0} for i in range(9)]
    name = f"piped-{buffer.key.experiment_id}"
    await tasksets.submit(name, rows)
    plan = plan_of(None, {"operators": FILTERED["operators"]}, storage_type="client", name=name)
    assert await tasks_of(buffer, plan) == [1, 3, 5, 7]
    assert (await tasksets.get(name)).num_rows == 9


async def test_an_operator_may_take_longer_than_a_transaction_may_be_silent(
    shared_dsn: str, shared_nats_url: str, tmp_path: Path
) -> None:
    extra = {"TRINITY_BUFFER_IDLE_TRANSACTION_SECONDS": "1", "TRINITY_BUFFER_PRIORITY_SECONDS": "1"}
    rows = [{"prompt": "x" * 300, "number": i, "hard": 0} for i in range(NUM_ROWS)]
    slow = {"operators": [{"name": f"{OWN}.sleeps", "args": {"seconds": 3.0}}]}
    async with (
        BufferProcess(shared_dsn, shared_nats_url, tmp_path / "buffer.log", extra) as process,
        AsyncTasksets(process.address) as tasksets,
        talk_to(process) as buffer,
    ):
        name = f"slow-{buffer.key.experiment_id}"
        await tasksets.submit(name, rows)
        assert await tasks_of(buffer, plan_of(None, slow, storage_type="client", name=name))
    assert "does not answer" not in (tmp_path / "buffer.log").read_text()


async def test_tasks_that_a_client_wrote_over_several_lines_are_one_row_each(
    buffer: Buffer, tasksets: AsyncTasksets
) -> None:
    name = f"lines-{buffer.key.experiment_id}"
    rows = [f'{{\n\t"prompt":\r\n"{i}",\n"number": {i}}}' for i in range(8)]
    await tasksets.submit(name, rows)
    plan = plan_of(None, {"operators": _odd()}, storage_type="client", name=name)
    assert await tasks_of(buffer, plan) == [1, 3, 5, 7]


async def test_inputs_take_the_place_of_the_path_and_columns_are_chosen(
    buffer: Buffer, tmp_path: Path
) -> None:
    inputs = [write(tmp_path / "a.jsonl", 3), write(tmp_path / "b.jsonl", 3, first=3)]
    pipeline = {"inputs": inputs, "target_fields": ["prompt", "number"], "order_method": "shuffle"}
    plan = plan_of("not/there.jsonl", pipeline)
    opened = await buffer.open(plan)
    assert opened.num_tasks == 6
    await buffer.begin()
    await buffer.record(0)
    granted = [json.loads(one.task_json) for one in (await buffer.lease()).assignments]
    assert all(set(one) == {"prompt", "number"} for one in granted)
    assert [one["number"] for one in granted] != [0, 1, 2, 3]


async def test_the_same_rows_are_piped_once_by_what_cannot_change(
    process: BufferProcess, tmp_path: Path, shared_dsn: str
) -> None:
    ours = {"operators": [{"name": "length_filter", "args": {"column": "prompt"}}]}
    plan = plan_of(write(tmp_path / "train.jsonl", 10), ours)
    own = plan_of(write(tmp_path / "own.jsonl", 10), {"operators": [{"name": f"{OWN}.odd_ones"}]})
    for _ in range(2):
        async with talk_to(process) as buffer:
            await buffer.open(plan)
        async with talk_to(process) as buffer:
            await buffer.open(own)
            await buffer.open(own)
    with psycopg.connect(shared_dsn) as connection:
        sources = "SELECT count(*) FROM buffer.taskset WHERE source LIKE %s"
        counts = [
            connection.execute(sources, (f"{tmp_path}/{name}.jsonl%",)).fetchone()
            for name in ("train", "own")
        ]
    assert counts == [(1,), (2,)], "a user's operator may be another one in the next experiment"


@pytest.mark.parametrize(
    ("operator", "said"),
    [
        ({"name": f"{OWN}.swallows"}, "task_pipeline: it needs more than the .* MiB of memory"),
        (
            {"name": f"{OWN}.sleeps", "args": {"seconds": 60.0}},
            "task operator .*sleeps did not answer within",
        ),
        (
            {"name": "number_filter", "args": {"column": "prompt"}},
            "task operator number_filter, rows 0 to 9: column 'prompt' holds no number",
        ),
        (
            {"name": "number_filter", "args": {"column": "number", "at_least": 99.0}},
            r"leaves none of its 10 rows: 10 by number_filter: number is not in 99..inf",
        ),
    ],
)
async def test_an_operator_that_does_harm_is_named_and_leaves_nothing_behind(
    buffer: Buffer, tmp_path: Path, operator: dict[str, object], said: str
) -> None:
    plan = plan_of(write(tmp_path / "train.jsonl", 10), {"operators": [operator]})
    with pytest.raises(grpc.aio.AioRpcError, match=said):
        await buffer.open(plan)


async def test_data_juicer_that_is_away_is_no_fault_of_the_tasks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "OperatorSession", LongEnough)
    with served(server.SessionStore()) as url:
        pass
    with pytest.raises(Unavailable, match=r"rows 0 to 2: Data-Juicer at .* does not answer"):
        await juiced_rows(url)
    with served(server.SessionStore(), int(url.rpartition(":")[2])):
        assert await juiced_rows(url) == [{"text": "long enough"}, {"text": "longer"}]


class Slow(LongEnough):
    """Takes longer than users' operators may."""

    def apply_operators(self, stream: bytes) -> tuple[bytes, dict[str, float]]:
        time.sleep(3 * CALL_SECONDS)
        return super().apply_operators(stream)


async def test_ones_own_operator_is_not_blamed_for_the_time_of_the_one_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "OperatorSession", Slow)
    own = TaskOperator(name=f"{OWN}.sleeps", args={"seconds": 0.0}, is_own=True)
    with served(server.SessionStore()) as url:
        rows = await juiced_rows(url, own, call_seconds=CALL_SECONDS)
    assert rows == [{"text": "long enough"}, {"text": "longer"}]


async def juiced_rows(url: str, *before: TaskOperator, call_seconds: float = 60.0) -> list[object]:
    """What is left of three tasks."""
    args: Args = {"server_url": url, "operators": [{"text_length_filter": {"min_len": 6}}]}
    operators = (*before, TaskOperator(name="data_juicer", args=args, is_own=False))
    limits = PipelineLimits(call_seconds=call_seconds, memory_bytes=2 * 1024**3)
    tasks = [{"text": text} for text in ("long enough", "short", "longer")]

    async def given() -> AsyncIterator[bytes]:
        yield "".join(json.dumps(task) + "\n" for task in tasks).encode()

    async with TaskPipelineProcess(ResolvedTaskPipeline(operators=operators), limits) as process:
        await process.feed(given())
        parts = [some.lines async for some in process.rows()]
    return [json.loads(line) for line in b"".join(parts).splitlines()]


@pytest.mark.parametrize("times", [2, 3])
async def test_a_process_that_somebody_ends_begins_again_and_nothing_is_there_twice(
    buffer: Buffer, tmp_path: Path, times: int
) -> None:
    args = {"times": times, "file": str(tmp_path / "deaths")}
    operators = [{"name": f"{OWN}.dies", "args": args}, {"name": f"{OWN}.odd_ones"}]
    plan = plan_of(write(tmp_path / "train.jsonl", 10), {"operators": operators})
    if times == 2:
        assert (await buffer.open(plan)).num_tasks == 5
    else:
        with pytest.raises(grpc.aio.AioRpcError, match=r"while .*dies was called, 3 times"):
            await buffer.open(plan)


async def test_a_buffer_that_is_killed_meanwhile_does_it_again(
    own_process: BufferProcess, tmp_path: Path
) -> None:
    slow = {"operators": [{"name": f"{OWN}.sleeps", "args": {"seconds": 0.5}}, *_odd()]}
    plan = plan_of(write(tmp_path / "train.jsonl", 20_000), slow)
    async with talk_to(own_process) as buffer:
        answer = await buffer.open_once(plan)
        assert answer.state == pb.OpenStageResponse.STATE_READING
        own_process.kill()
        await own_process.start()
    quick = plan_of(write(tmp_path / "train.jsonl", 20_000), {"operators": _odd()})
    async with talk_to(own_process) as buffer:
        assert await tasks_of(buffer, quick) == [1, 3, 5, 7]


def _odd() -> list[object]:
    return [{"name": f"{OWN}.odd_ones"}]
