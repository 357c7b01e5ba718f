"""Stored samples as a Parquet file, a `datasets` directory or a table."""

import json
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any, Literal

from trinity.api.v1 import query_pb2
from trinity.config.checks.packages import install_command
from trinity.data.media import read_media
from trinity.data.samples import sample_row, samples
from trinity.errors import UserError
from trinity.run.conditions import parse_conditions
from trinity.run.places import RunLocation
from trinity.run.stored import StoredExperiment, open_stored_experiment
from trinity.runtime.owned_places import move_to_new, working_folder
from trinity.types import JsonObject

ROWS_A_GROUP = 1024
BYTES_A_GROUP = 32 * 1024 * 1024
"""Uncompressed bytes in memory at once."""
AS_JSON = ("metrics", "reward_parts", "info", "arrays")
"""Columns with a workflow's own structure: each a JSON object."""
Form = Literal["parquet", "datasets"]
Writer = Callable[[Path, AsyncIterator[JsonObject]], Any]


def load_pyarrow() -> Any:
    """Imports pyarrow.

    Raises: UserError when it is not installed.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise UserError(
            f"an export needs pyarrow, which cannot be imported ({error}): "
            f"{install_command('export')}"
        ) from error
    return pyarrow


def schema(pa: Any) -> Any:
    """Returns the columns, in order."""
    text, whole, real = pa.string(), pa.int64(), pa.float64()
    sequence = [
        ("prompt", text),
        ("response", text),
        ("prompt_length", whole),
        ("tokens", pa.list_(pa.int32())),
        ("action_mask", pa.list_(pa.bool_())),
        ("rollout_logprobs", pa.list_(pa.float32())),
    ]
    span = pa.struct([(name, whole) for name in ("start", "end", "version", "incarnation")])
    sampling = pa.struct(
        [
            ("temperature", real),
            ("top_p", real),
            ("top_k", whole),
            ("max_tokens", whole),
            ("seed", whole),
            ("min_p", real),
            ("repetition_penalty", real),
            ("presence_penalty", real),
            ("frequency_penalty", real),
            ("stop", pa.list_(text)),
            ("logprobs", whole),
            ("json_schema", text),
        ]
    )
    texts = ("id", "stage", "suffix", "parent_id", "assignment_id", "taskset", "state", "reason")
    places = ("explore_step", "position", "run", "attempt", "step", "revision", "task_index")
    counts = ("version_min", "version_max", "num_tokens", "response_length", "train_step", "place")
    reals = ("reward", "shaped_reward", "advantage", "weight", "mean_ratio", "trained_advantage")
    return pa.schema(
        [
            *((name, text) for name in texts),
            *((name, whole) for name in (*places, *counts)),
            *((name, real) for name in reals),
            ("finish_reason", text),
            ("created_at", text),
            *sequence,
            ("rejected", pa.struct(sequence)),
            ("version_spans", pa.list_(span)),
            ("sampling", sampling),
            *((name, text) for name in AS_JSON),
            ("trace_id", text),
            ("images", pa.list_(pa.struct([("bytes", pa.binary()), ("path", text)]))),
        ]
    )


async def write_parquet(path: Path, rows: AsyncIterator[JsonObject]) -> int:
    """Writes a file atomically; returns the number of samples in it."""
    pa = load_pyarrow()
    columns = schema(pa)
    count = 0
    with working_folder(path) as work:
        with pa.parquet.ParquetWriter(work / path.name, columns, compression="zstd") as writer:
            async for group in _groups(rows):
                writer.write_table(pa.Table.from_pylist(group, schema=columns))
                count += len(group)
        move_to_new(work / path.name, path)
    return count


def flat_row(row: JsonObject) -> JsonObject:
    """Returns a row as `schema` has it: a workflow's own structures are JSON."""
    return {**row, **{name: json.dumps(row[name]) for name in AS_JSON if name in row}}


async def _groups(rows: AsyncIterator[JsonObject]) -> AsyncIterator[list[JsonObject]]:
    group: list[JsonObject] = []
    num_bytes = 0
    async for row in rows:
        flat = flat_row(row)
        group.append(flat)
        num_bytes += _size(flat)
        if len(group) >= ROWS_A_GROUP or num_bytes >= BYTES_A_GROUP:
            yield group
            group, num_bytes = [], 0
    if group:
        yield group


def _size(row: JsonObject) -> int:
    """Estimates the bytes that a row takes."""
    images: Any = row.get("images") or ()
    num_bytes: int = sum(len(image["bytes"]) for image in images)
    return num_bytes + sum(
        len(value) * 8 for value in row.values() if isinstance(value, str | list)
    )


async def write_dataset(path: Path, rows: AsyncIterator[JsonObject]) -> int:
    """Writes a directory for `datasets.load_from_disk`; returns the number of its samples."""
    dataset_class = _load_datasets()
    with working_folder(path) as work:
        count = await write_parquet(work / "samples.parquet", rows)
        dataset = dataset_class.from_parquet(
            str(work / "samples.parquet"), cache_dir=str(work / "cache")
        )
        if count and any(map(len, dataset["images"])):
            dataset = dataset.cast_column("images", [_image_feature()])
        dataset.save_to_disk(str(work / "dataset"))
        move_to_new(work / "dataset", path)
    return count


def _load_datasets() -> Any:
    try:
        import datasets
    except ImportError as error:
        raise UserError(
            f"this export needs `datasets`, which cannot be imported ({error}): "
            f"{install_command('export')}, or write a .parquet file"
        ) from error
    datasets.disable_progress_bars()
    return datasets.Dataset


WRITERS: dict[Form, Writer] = {"parquet": write_parquet, "datasets": write_dataset}


async def export_samples(
    place: RunLocation,
    out: Path,
    wanted: query_pb2.ExperienceFilter,
    *,
    stage: str | None = None,
    form: Form | None = None,
) -> int:
    """Writes the samples that satisfy; returns their number. Few are in memory at a time."""
    write = WRITERS[form or ("parquet" if out.suffix == ".parquet" else "datasets")]
    async with open_stored_experiment(place) as stored:
        count: int = await write(
            _absolute(out), _with_images(stored_rows(stored, stage, wanted), stored)
        )
        return count


def check_export(out: Path, conditions: Iterable[str]) -> query_pb2.ExperienceFilter:
    """Returns the samples that conditions mean.

    Raises: UserError for an invalid condition, if `out` exists, or if a package is missing.
    """
    wanted = parse_conditions(conditions)
    if out.exists():
        raise UserError(f"{out} exists: give another path, or remove it")
    if not _absolute(out).parent.is_dir():
        raise UserError(f"{_absolute(out).parent} is not a directory: create it first")
    load_pyarrow()
    return wanted


def _absolute(path: Path) -> Path:
    return path.absolute()


async def stored_rows(
    stored: StoredExperiment,
    stage: str | None,
    wanted: query_pb2.ExperienceFilter,
    limit: int = 0,
) -> AsyncIterator[JsonObject]:
    """Yields the samples of a stage, or of all, that satisfy; at most `limit` unless it is 0."""
    keys = [stored.key(stage)] if stage is not None else [each.key for each in stored.stages]
    left = limit
    for key in keys:
        async for record in samples(stored.queries, key, wanted, limit=left, with_content=True):
            yield sample_row(record)
            left -= bool(limit)
        if limit and not left:
            return


async def _with_images(
    rows: AsyncIterator[JsonObject], stored: StoredExperiment
) -> AsyncIterator[Any]:
    """Yields rows whose images are those of `datasets`."""
    tenants = {stage.key.stage: stage.key.tenant for stage in stored.stages}
    async for row in rows:
        images: Any = row.get("images")
        if not images:
            yield row
            continue
        hashes = [bytes.fromhex(image["sha256"]) for image in images]
        assert stored.buffer is not None
        contents = await read_media(stored.buffer, tenants[str(row["stage"])], hashes)
        yield {**row, "images": [{"bytes": contents[own], "path": None} for own in hashes]}


def _image_feature() -> Any:
    from datasets import Image

    return Image()
