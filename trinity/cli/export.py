"""`trinity export`: stored samples as a Parquet file or a `datasets` directory."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from trinity.cli.places import FindRun, at_a_run
from trinity.run.conditions import HELP
from trinity.run.exports import Form, check_export, export_samples
from trinity.run.runs import read_outline
from trinity.weights.stored import model_lines


@at_a_run(has_words=True)
def export(
    out: Annotated[
        Path, typer.Argument(help="The file or directory to write.", show_default=False)
    ],
    conditions: Annotated[list[str] | None, typer.Argument(help=HELP)] = None,
    *,
    find_run: FindRun,
    stage: Annotated[
        str | None, typer.Option("--stage", help="The stage; without it all of them.")
    ] = None,
    form: Annotated[
        Form | None,
        typer.Option(
            "--format", help="Default: parquet for a path with that ending, else datasets."
        ),
    ] = None,
) -> None:
    """Write samples to a Parquet file, or to a directory for `datasets.load_from_disk`.

    The samples are streamed, so that few are in memory at a time.
    """
    wanted = check_export(out, conditions or ())
    place = find_run()
    count = asyncio.run(export_samples(place, out, wanted, stage=stage, form=form))
    print(f"{count:,} samples in {out}")
    if isinstance(place, Path):
        stages = [planned.name for planned in read_outline(place).stages]
        print(*model_lines(place, stages), sep="\n")
