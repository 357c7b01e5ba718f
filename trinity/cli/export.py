"""`trinity export`: stored samples as a Parquet file or a `datasets` directory."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Literal

import typer

from trinity.api.v1 import query_pb2
from trinity.cli.runs import ConfigOption, JobDirOption, find_job_dir
from trinity.errors import UserError
from trinity.inspect.conditions import HELP, parse_conditions
from trinity.inspect.open import StoredExperiment, open_stored_experiment
from trinity.inspect.parquet import WRITERS, load_pyarrow
from trinity.inspect.samples import sample_row, samples
from trinity.types import JsonObject


def export(
    out: Annotated[
        Path, typer.Argument(help="The file or directory to write.", show_default=False)
    ],
    conditions: Annotated[list[str] | None, typer.Argument(help=HELP)] = None,
    config: ConfigOption = None,
    job_dir: JobDirOption = None,
    stage: Annotated[
        str | None, typer.Option("--stage", help="The stage; without it all of them.")
    ] = None,
    form: Annotated[
        Literal["parquet", "datasets"] | None,
        typer.Option(
            "--format", help="Default: parquet for a path with that ending, else datasets."
        ),
    ] = None,
) -> None:
    """Write samples to a Parquet file, or to a directory for `datasets.load_from_disk`.

    The samples are streamed, so that few are in memory at a time.
    """
    wanted = parse_conditions(conditions or [])
    chosen = form or ("parquet" if out.suffix == ".parquet" else "datasets")
    if out.exists():
        raise UserError(f"{out} exists: give another path, or remove it")
    if not out.absolute().parent.is_dir():
        raise UserError(f"{out.absolute().parent} is not a directory: create it first")
    load_pyarrow()
    count = asyncio.run(
        _write(find_job_dir(config, job_dir), stage, wanted, out.absolute(), chosen)
    )
    print(f"{count:,} samples in {out}")


async def _write(
    directory: Path, stage: str | None, wanted: query_pb2.ExperienceFilter, out: Path, form: str
) -> int:
    async with open_stored_experiment(directory) as stored:
        count: int = await WRITERS[form](out, _rows(stored, stage, wanted))
        return count


async def _rows(
    stored: StoredExperiment, stage: str | None, wanted: query_pb2.ExperienceFilter
) -> AsyncIterator[JsonObject]:
    keys = (
        [stored.key(stage)]
        if stage is not None
        else [stored_stage.key for stored_stage in stored.stages]
    )
    for key in keys:
        async for record in samples(stored.queries, key, wanted, with_content=True):
            yield sample_row(record)
