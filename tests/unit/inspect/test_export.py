"""What is exported can be read by what people use, whole and with nothing lost."""

import json
import os
import shutil
from collections.abc import AsyncIterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import datasets
import pyarrow.parquet
import pytest

from tests.support.images import png
from tests.unit.inspect.builders import content, record, sequence
from trinity.api.v1 import experience_pb2
from trinity.data.samples import sample_row
from trinity.run.exports import AS_JSON, ROWS_A_GROUP, write_dataset, write_parquet
from trinity.runtime.owned_places import MARK
from trinity.types import JsonObject, Pair, SamplingParams

PAIR = Pair(chosen=sequence("yes"), rejected=sequence("no"))


async def rows(*found: JsonObject) -> AsyncIterator[JsonObject]:
    for one in found:
        yield one


def read_back(written: JsonObject) -> JsonObject:
    return {**written, **{name: json.loads(str(written[name])) for name in AS_JSON}}


async def test_a_parquet_file_gives_back_every_field(tmp_path: Path) -> None:
    row = sample_row(record())
    out = tmp_path / "samples.parquet"
    assert await write_parquet(out, rows(row)) == 1
    [read] = pyarrow.parquet.read_table(out).to_pylist()
    assert read_back(read) == row
    assert row["tokens"] == [5, 6, 7, 8, 9]
    assert row["rollout_logprobs"] == [-0.5, 0.0, -1.25]


async def test_images_are_those_of_datasets(tmp_path: Path) -> None:
    own: Any = [{"bytes": png(), "path": None}]
    pictured, plain = {**sample_row(record()), "images": own}, sample_row(record())
    out = tmp_path / "samples"
    assert await write_dataset(out, rows(pictured, plain)) == 2
    first, second = datasets.load_from_disk(str(out))["images"]
    assert [image.size for image in first] == [(8, 6)] and second == []


NOT_EXPORTED = {
    "chat_template_sha256": "checks that a rank uses the same template",
    "tools_sha256": "checks that a rank uses the same tools",
    "experiment_id": "the same in every row",
    "tenant": "the same in every row",
    "reward_state": "the column `state` says whether a reward is awaited",
    "reward_revision": "the column `revision`",
    "turns": "digests, which `trinity lineage --verify` compares",
}
COLUMNS = {"blobs": "images", "eid": "explore_step", "sequence": "tokens", "pair": "rejected"}
"""Fields that become several columns, with one of these."""


def test_every_field_of_an_experience_is_exported_or_left_out_on_purpose() -> None:
    fields = {field.name for field in experience_pb2.Experience.DESCRIPTOR.fields}
    columns = sample_row(record()).keys()
    exported = {field for field in fields if COLUMNS.get(field, field) in columns}
    assert fields - exported == NOT_EXPORTED.keys()


async def test_a_pair_keeps_both_sides(tmp_path: Path) -> None:
    out = tmp_path / "pairs.parquet"
    await write_parquet(out, rows(sample_row(record(body=PAIR))))
    [read] = pyarrow.parquet.read_table(out).to_pylist()
    assert (read["response"], read["rejected"]["response"]) == ("yes", "no")


async def test_a_deleted_sample_has_its_row_without_content(tmp_path: Path) -> None:
    out = tmp_path / "samples.parquet"
    await write_parquet(out, rows(sample_row(record(with_content=False))))
    [read] = pyarrow.parquet.read_table(out).to_pylist()
    assert (read["reward"], read["tokens"], read["info"]) == (0.75, None, None)


async def test_many_samples_are_written_group_by_group(tmp_path: Path) -> None:
    row = sample_row(record())
    out = tmp_path / "many.parquet"
    number = 2 * ROWS_A_GROUP + 5
    assert await write_parquet(out, rows(*[row] * number)) == number
    described = pyarrow.parquet.ParquetFile(out)
    assert (described.metadata.num_rows, described.metadata.num_row_groups) == (number, 3)


async def test_nothing_to_export_gives_an_empty_table(tmp_path: Path) -> None:
    out = tmp_path / "none.parquet"
    assert await write_parquet(out, rows()) == 0
    assert "tokens" in pyarrow.parquet.read_table(out).column_names


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
async def test_a_directory_is_what_datasets_loads(tmp_path: Path) -> None:
    import datasets

    out = tmp_path / "samples"
    row = sample_row(record())
    assert await write_dataset(out, rows(row, sample_row(record(body=PAIR)))) == 2
    loaded = datasets.load_from_disk(str(out))
    assert loaded.num_rows == 2
    assert read_back(loaded[0]) == row
    assert os.listdir(tmp_path) == ["samples"]


async def test_an_export_that_breaks_leaves_nothing(tmp_path: Path) -> None:
    async def broken() -> AsyncIterator[JsonObject]:
        yield sample_row(record())
        raise ConnectionError("the buffer went away")

    for write, name in ((write_parquet, "samples.parquet"), (write_dataset, "samples")):
        with pytest.raises(ConnectionError):
            await write(tmp_path / name, broken())
        assert os.listdir(tmp_path) == []


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
async def test_what_a_killed_export_left_stands_in_nobodys_way(tmp_path: Path) -> None:
    left = tmp_path / ".samples.partial"
    for write in (write_dataset, write_parquet):
        (left / "cache").mkdir(parents=True)
        (left / MARK).touch()
        (left / "samples.parquet").write_bytes(b"PAR1")
        out = tmp_path / "samples"
        assert await write(out, rows(sample_row(record()))) == 1
        assert os.listdir(tmp_path) == ["samples"]
        shutil.rmtree(out, ignore_errors=True)
        out.unlink(missing_ok=True)


async def test_everything_that_was_sampled_with_is_exported(tmp_path: Path) -> None:
    sampling = SamplingParams(logprobs=3, json_schema='{"type": "object"}', stop=("a", "b"))
    one = record()
    one.content.CopyFrom(content(sampling=sampling))
    out = tmp_path / "samples.parquet"
    await write_parquet(out, rows(sample_row(one)))
    [read] = pyarrow.parquet.read_table(out).to_pylist()
    assert read["sampling"] == {**asdict(sampling), "stop": ["a", "b"]}
