"""`trinity status`: the state of a run and its waits, from another terminal."""

import asyncio
from collections.abc import Iterable, Iterator
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from trinity.api.v1 import buffer_pb2, query_pb2, query_pb2_grpc
from trinity.cli.places import FindRun, at_a_run
from trinity.inspect.tables import population_lines, population_table
from trinity.run.places import RunLocation
from trinity.run.reports import ask_run, report_of
from trinity.run.runs import OneJsonOption, services_of, stopped_run_lines
from trinity.run.state import RunReport, WaitReport, WorkReport
from trinity.runtime.rpc.channel import open_channel
from trinity.runtime.rpc.errors import translate_rpc_errors
from trinity.runtime.rpc.limits import CALL_SECONDS

Populations = list[query_pb2.GetPopulationResponse]
"""One for each stage at work."""


@at_a_run()
def status(*, find_run: FindRun, as_json: OneJsonOption = False) -> None:
    """Show the stages, how trained samples differ from generated ones, and what waits for what.

    For a stopped run: how it ended, and its newest checkpoints.
    """
    place = find_run()
    state = asyncio.run(ask_run(place))
    if as_json:
        print(report_of(place, state).model_dump_json(indent=1))
    elif state is None:
        assert isinstance(place, Path), "only a run here stops with its services"
        print(*stopped_run_lines(place), sep="\n")
    else:
        _show(state, asyncio.run(_populations(place, state)))


async def _populations(place: RunLocation, state: RunReport) -> Populations:
    at = services_of(place)
    assert at is not None, "it was asked just now"
    with translate_rpc_errors():
        async with open_channel(at.buffer, at.security) as channel:
            queries: query_pb2_grpc.QueryServiceStub = query_pb2_grpc.QueryServiceStub(channel)
            return [await _population(queries, stage) for stage in state.work or ()]


async def _population(
    queries: query_pb2_grpc.QueryServiceStub, work: WorkReport
) -> query_pb2.GetPopulationResponse:
    key = buffer_pb2.StageKey(
        tenant=work.tenant, experiment_id=work.experiment_id, stage=work.stage
    )
    found: query_pb2.GetPopulationResponse = await queries.GetPopulation(
        query_pb2.GetPopulationRequest(key=key), timeout=CALL_SECONDS
    )
    return found


def _show(state: RunReport, populations: Populations) -> None:
    console, work = Console(), state.work or ()
    for experiment in state.experiments or ():
        reason = escape(f": {experiment.reason}") if experiment.reason else ""
        console.print(f"[bold]{escape(experiment.label)}[/bold]  {experiment.state}{reason}")
        if experiment.turn is not None:
            console.print(f"  {escape(experiment.turn.text)}")
        for named in experiment.stages:
            console.print(f"  {escape(named.name)}  {named.state}")
    console.print(_work_table(work))
    for lines in (replay_lines, pipeline_lines, refill_lines):
        console.print(*map(escape, lines(work)), sep="", end="")
    for stage, population in zip(work, populations, strict=True):
        if population.last_explore_step:
            console.print(*population_lines(stage.stage, population), sep="\n")
            console.print(population_table(population))
    for lines in (refused_lines, changed_lines):
        console.print(*map(escape, lines(work)), sep="", end="")
    console.print(member_table(state))
    console.print(*left_out_lines(state), sep="", end="")
    console.print(_wait_table(state.waits) if state.waits else "nothing waits")


def _work_table(work: Iterable[WorkReport]) -> Table:
    table = Table("stage", "explore step", "trained step", "pending", "leased", "ready", "stream")
    for stage in work:
        counts = (
            stage.explore_step,
            stage.trained_step,
            stage.num_pending,
            stage.num_leased,
            stage.num_ready,
            stage.num_stream_pending,
        )
        table.add_row(escape(stage.stage), *(str(count) for count in counts))
    return table


def replay_lines(stages: Iterable[WorkReport]) -> Iterator[str]:
    """Yields a line for each stage that trains samples by priority."""
    for stage in stages:
        if (replay := stage.replay) is not None:
            yield (
                f"{stage.stage}: {replay.num_trained:,} samples trained, {replay.num_replayed:,} "
                "rows of batches were trained before, one sample at most "
                f"{replay.max_uses} times; {replay.num_waiting:,} may come again, "
                f"{replay.num_dropped:,} were dropped untrained\n"
            )


def pipeline_lines(stages: Iterable[WorkReport]) -> Iterator[str]:
    """Yields a line for each taskset that went through a task pipeline."""
    for stage in stages:
        for pipeline in stage.task_pipelines:
            reasons = "; ".join(f"{left.num_rows:,} by {left.reason}" for left in pipeline.left_out)
            yield (
                f"{stage.stage}: taskset {pipeline.taskset} has {pipeline.num_rows:,} of "
                f"{pipeline.num_read:,} tasks{', left out are ' if reasons else ''}{reasons}\n"
            )


def refill_lines(stages: Iterable[WorkReport]) -> Iterator[str]:
    """Yields a line for each stage whose newest explore step draws further tasks."""
    for stage in stages:
        if stage.num_refill_tasks and stage.num_recent_runs:
            survival = 1 - stage.num_recent_lost / stage.num_recent_runs
            yield (
                f"{stage.stage}: explore step {stage.explore_step} has drawn "
                f"{stage.num_refill_tasks:,} further tasks in {stage.refill_round} rounds, as "
                f"{survival:.0%} of the newest runs can be trained\n"
            )


def changed_lines(stages: Iterable[WorkReport]) -> Iterator[str]:
    """Yields a line for each setting that was changed after its stage was opened."""
    yield from (f"{stage.stage}: changed {text}\n" for stage in stages for text in stage.changes)


def refused_lines(stages: Iterable[WorkReport]) -> Iterator[str]:
    """Yields a line for each stage of which results were refused."""
    for stage in stages:
        if stage.num_dead_letters:
            yield (
                f"{stage.stage}: {stage.num_dead_letters:,} results were refused and are kept "
                f"as dead letters, the newest because: {stage.dead_letter_reason}\n"
            )


def left_out_lines(state: RunReport) -> Iterator[str]:
    """Yields a line for each list that did not fit into an answer."""
    found = ((name, count) for name, count in state.left_out.items() if count)
    yield from (f"{count:,} more {name} are not shown\n" for name, count in found)


def member_table(state: RunReport) -> Table:
    """Table of the members and their activities."""
    address = Column("address", no_wrap=True)  # a truncated port is useless
    table = Table("member", address, "stage", "doing", "version", "heard")
    for member in state.members or ():
        heard = f"{member.silent_seconds:.1f} s ago"
        version = "" if member.version is None else str(member.version)
        said = (escape(text) for text in (member.address, member.stage, member.activity))
        table.add_row(member.role, *said, version, heard)
    return table


def _wait_table(waits: Iterable[WaitReport]) -> Table:
    table = Table("waits", "for", "because", "since", "gives up in")
    for wait in waits:
        limit = f"{wait.deadline_seconds:.0f} s" if wait.deadline_seconds else "never"
        since = f"{wait.waited_seconds:.1f} s"
        said = (escape(text) for text in (wait.owner, wait.waits_for, wait.reason))
        table.add_row(*said, since, limit)
    return table
