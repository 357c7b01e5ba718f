"""`trinity why`: what holds a run up, and what to do about it."""

import asyncio

import typer

from trinity.cli.reports import why_report
from trinity.cli.runs import (
    ConfigOption,
    JobDirOption,
    OneJsonOption,
    RunArgument,
    find_run,
    place_of,
)
from trinity.diagnosis.diagnose import diagnose
from trinity.diagnosis.gather import gather
from trinity.local.addresses import stack_directory_of

HELD_UP = 3


def why(
    config: ConfigOption = None,
    job_dir: JobDirOption = None,
    run: RunArgument = None,
    as_json: OneJsonOption = False,
) -> None:
    """Show what holds the run up and what to do; works whatever part of it is down.

    Exit code 0: it makes progress or has nothing to do. 3: it is held up or has failed.
    2: no run is going on there.
    """
    directory, running = find_run(*place_of(run, config, job_dir))
    verdict = diagnose(asyncio.run(gather(running, stack_directory_of(directory))))
    if as_json:
        print(why_report(verdict).model_dump_json(indent=1))
    else:
        print(verdict.text, *verdict.notes, sep="\n")
    if not verdict.is_healthy:
        raise typer.Exit(HELD_UP)
