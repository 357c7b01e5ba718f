"""Rows of several mebibytes: what is read and told at once is bounded by their bytes."""

import json
from pathlib import Path

from services.buffer.domain.stage import TasksetKind
from services.buffer.domain.tasks import NeededTaskset
from services.buffer.store.database import BufferDatabase
from services.buffer.store.tasksets import Taskset
from services.buffer.tasksets.library import source_of_submitted
from tests.integration.buffer.harness import Buffer
from tests.integration.buffer.looking import Looking
from tests.integration.buffer.process import BufferProcess
from tests.unit.config.builders import SFT, stage
from trinity.client import AsyncTasksets
from trinity.operators.tasks.task_pipeline import ResolvedTaskPipeline
from trinity.runtime.postgres import async_engine
from trinity.runtime.rpc.channel import open_channel

MEBIBYTE = 1024 * 1024


def rows_of(count: int, num_bytes: int) -> list[dict[str, object]]:
    return [{"number": i, "prompt": str(i), "response": "x" * num_bytes} for i in range(count)]


async def test_a_step_on_large_rows_is_told_in_several_messages(
    process: BufferProcess, buffer: Buffer, tmp_path: Path
) -> None:
    file = tmp_path / "sft.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows_of(40, 2 * MEBIBYTE)))
    data = {
        "storage_type": "file",
        "path": str(file),
        "format": {"prompt_type": "plaintext"},
        "data_selector": {"selector_type": "sequential"},
    }
    given = {"train_batch_size": 40, "trainer_input": {"experience_buffer": data}}
    await buffer.open(stage(SFT, buffer={**given, "total_steps": 1}))
    await buffer.begin()
    await buffer.batch(1)
    async with open_channel(process.address) as channel:
        _, rows = await Looking.on(channel, buffer.pb_key).step(1)
    assert [json.loads(row.row_json)["number"] for row in rows] == list(range(40))


async def test_a_row_is_shown_however_large_and_further_ones_where_there_is_room(
    tasksets: AsyncTasksets, buffer: Buffer
) -> None:
    name = f"large-{buffer.key.experiment_id}"
    await tasksets.submit(name, [*rows_of(3, 400_000), *rows_of(2, 2 * MEBIBYTE)])
    shown = [
        len((await tasksets.get(name, first_row=first, num_rows=5)).rows) for first in range(5)
    ]
    assert shown == [2, 2, 1, 1, 1]


async def test_what_a_client_brought_goes_to_a_pipeline_a_few_bytes_at_a_time(
    tasksets: AsyncTasksets, buffer: Buffer, shared_dsn: str
) -> None:
    name = f"piped-{buffer.key.experiment_id}"
    sizes = [*[2 * MEBIBYTE] * 4, *[300_000] * 9, *[10] * 2_500]
    await tasksets.submit(name, [row for size in sizes for row in rows_of(1, size)])
    info = await tasksets.get(name)
    needed = NeededTaskset(
        name=name,
        kind=TasksetKind.TRAIN,
        path=None,
        split="train",
        subset_name=None,
        pipeline=ResolvedTaskPipeline(),
    )
    taskset = Taskset(taskset_id=info.taskset_id, is_complete=True, num_rows=len(sizes))
    engine = async_engine(shared_dsn, "buffer")
    database = BufferDatabase(engine)
    database.open()
    try:
        origin = source_of_submitted(needed, taskset, database, "default", "experiment")
        parts = [part async for part in origin.read_lines()]
    finally:
        await engine.dispose()
    assert max(map(len, parts)) < 2.1 * MEBIBYTE, "no two of the largest, or five of the others"
    read = [json.loads(line) for part in parts for line in part.splitlines()]
    assert [len(row["response"]) for row in read] == sizes
