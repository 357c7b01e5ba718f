"""`trinity why`: the cause of a stalled run and its remedy."""

import asyncio

import typer

from trinity.cli.places import FindRun, at_a_run
from trinity.run.diagnosis.diagnose import diagnose
from trinity.run.diagnosis.gather import gather
from trinity.run.diagnosis.remote import gather_from_services
from trinity.run.local.addresses import stack_directory_of
from trinity.run.places import Deployment
from trinity.run.reports import why_report
from trinity.run.runs import OneJsonOption, active_stack

HELD_UP = 3


@at_a_run()
def why(*, find_run: FindRun, as_json: OneJsonOption = False) -> None:
    """Show what holds the run up and what to do; works whatever part of it is down.

    With --buffer and --synchronizer it asks the services of a deployment. Processes, logs, broker
    and database are not seen from there but by what these two services say.

    Exit code 0: it makes progress or has nothing to do. 3: it is held up or has failed.
    2: no run is going on there.
    """
    place = find_run()
    if isinstance(place, Deployment):
        found = asyncio.run(gather_from_services(place))
    else:
        found = asyncio.run(gather(active_stack(place), stack_directory_of(place)))
    verdict = diagnose(found)
    if as_json:
        print(why_report(verdict, found).model_dump_json(indent=1))
    else:
        print(verdict.text, *verdict.notes, sep="\n")
    if not verdict.is_healthy:
        raise typer.Exit(HELD_UP)
