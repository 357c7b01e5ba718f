"""`trinity why`: the cause of a stalled run and its remedy."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from trinity.cli.reports import why_report
from trinity.errors import UserError
from trinity.run.diagnosis.diagnose import diagnose
from trinity.run.diagnosis.gather import gather
from trinity.run.diagnosis.remote import gather_from_services
from trinity.run.diagnosis.snapshot import SystemSnapshot
from trinity.run.local.addresses import stack_directory_of
from trinity.run.runs import (
    ConfigOption,
    JobDirOption,
    OneJsonOption,
    RunArgument,
    SynchronizerOption,
    find_run,
    place_of,
)
from trinity.runtime.security.credentials import Credentials

HELD_UP = 3
BufferOption = Annotated[
    str,
    typer.Option("--buffer", help="The buffer's address, host:port, for a deployment's run."),
]
ExperimentOption = Annotated[
    str,
    typer.Option(
        "--experiment",
        help="Label or id of the experiment, where several run at these addresses.",
        show_default=False,
    ),
]


def why(
    config: ConfigOption = None,
    job_dir: JobDirOption = None,
    run: RunArgument = None,
    as_json: OneJsonOption = False,
    buffer: BufferOption = "",
    synchronizer: SynchronizerOption = "",
    experiment: ExperimentOption = "",
) -> None:
    """Show what holds the run up and what to do; works whatever part of it is down.

    With --buffer and --synchronizer it asks the services of a deployment. Processes, logs, broker
    and database are not seen from there but by what these two services say.

    Exit code 0: it makes progress or has nothing to do. 3: it is held up or has failed.
    2: no run is going on there.
    """
    if buffer or synchronizer or experiment:
        _refuse_a_run_beside(run or config or job_dir)
        found = _of_services(buffer, synchronizer, experiment)
    else:
        directory, running = find_run(*place_of(run, config, job_dir))
        found = asyncio.run(gather(running, stack_directory_of(directory)))
    verdict = diagnose(found)
    if as_json:
        print(why_report(verdict, found).model_dump_json(indent=1))
    else:
        print(verdict.text, *verdict.notes, sep="\n")
    if not verdict.is_healthy:
        raise typer.Exit(HELD_UP)


def _of_services(buffer: str, synchronizer: str, experiment: str) -> SystemSnapshot:
    for option, address in (("--buffer", buffer), ("--synchronizer", synchronizer)):
        if not address:
            raise UserError(f"{option} is missing: `trinity why` asks both services by address")
    return asyncio.run(
        gather_from_services(
            synchronizer=synchronizer,
            buffer=buffer,
            security=Credentials.from_environment(),
            experiment=experiment,
        )
    )


def _refuse_a_run_beside(place: Path | None) -> None:
    if place is not None:
        raise UserError(
            f"{place} names a run of this machine, and --buffer and --synchronizer name services: "
            "leave one of them out"
        )
