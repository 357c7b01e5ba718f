"""Whatever the process that reads rows has to say, its rows come."""

import asyncio
from pathlib import Path

import pytest

from services.buffer.tasksets import task_pipeline
from services.buffer.tasksets.row_sources import RowSource
from services.buffer.tasksets.task_pipeline import read_rows
from trinity.config.training_rows import SkippedRows
from trinity.errors import PreconditionFailed

SOON_SECONDS = 20.0
SOURCE = RowSource(kind="file", place="rows.jsonl", roots=("/",))


async def test_a_reader_that_says_much_is_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_pipeline, "READER_MODULE", "tests.unit.buffer.says_much")
    rows = b""
    with pytest.raises(PreconditionFailed, match=r"^taskset sums: there is no second row$"):
        async with asyncio.timeout(SOON_SECONDS):
            async for lines in read_rows("sums", SOURCE, []):
                rows += lines
    assert rows == b'{"prompt": "1+1="}\n'


async def test_files_beside_shards_are_logged_with_the_taskset(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train-00000-of-00001.jsonl").write_text('{"prompt": "shard"}\n')
    (tmp_path / "train.jsonl").write_text('{"prompt": "beside"}\n')
    source = RowSource(kind="file", place=str(tmp_path), roots=("/",))
    skipped: list[SkippedRows] = []
    async with asyncio.timeout(SOON_SECONDS):
        rows = b"".join([lines async for lines in read_rows("sums", source, skipped)])
    assert skipped == []
    assert rows == b'{"prompt": "shard"}\n'
    (logged,) = (record for record in caplog.records if record.name == task_pipeline.__name__)
    assert vars(logged)["taskset"] == "sums"
    assert vars(logged)["detail"] == (
        f"train.jsonl in {tmp_path} is not read, as the folder has shards of the split `train` "
        "(data/train-00000-of-00001.jsonl)"
    )
