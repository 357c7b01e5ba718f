"""`trinity status`: the state of a run and its waits, from another terminal."""

import asyncio
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import grpc
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from trinity.api.v1 import (
    buffer_pb2,
    buffer_pb2_grpc,
    query_pb2,
    query_pb2_grpc,
    synchronizer_pb2,
    synchronizer_pb2_grpc,
)
from trinity.cli.reports import StageReport, StatusReport, running_report, stopped_report
from trinity.errors import RunFailed
from trinity.inspect.tables import population_lines, population_table
from trinity.run.diagnosis.rules import turn_text
from trinity.run.local.addresses import ServiceAddresses
from trinity.run.monitors.factory import MONITOR_FOLDER
from trinity.run.monitors.feed import MonitorOutage
from trinity.run.progress.summary import FINISHED, RunSummary
from trinity.run.progress.view import change_text
from trinity.run.runs import (
    ConfigOption,
    JobDirOption,
    OneJsonOption,
    RunArgument,
    find_job_dir,
    last_summary,
    newest_checkpoint_step,
    place_of,
    read_outline,
    running_stack,
    stopped_run_lines,
)
from trinity.runtime.rpc.channel import open_channel
from trinity.runtime.rpc.limits import CALL_SECONDS

Populations = list[query_pb2.GetPopulationResponse]
"""One for each stage at work."""


def status(
    config: ConfigOption = None,
    job_dir: JobDirOption = None,
    run: RunArgument = None,
    as_json: OneJsonOption = False,
) -> None:
    """Show the stages, how trained samples differ from generated ones, and what waits for what.

    For a stopped run: how it ended, and its newest checkpoints.
    """
    directory = find_job_dir(*place_of(run, config, job_dir))
    running = running_stack(directory)
    if running is None and as_json:
        print(_stopped_report(directory).model_dump_json(indent=1))
        return
    if running is None:
        for line in stopped_run_lines(directory):
            print(line)
        return
    try:
        now, work, populations = asyncio.run(_ask(running.addresses))
    except grpc.aio.AioRpcError as error:
        raise RunFailed(
            f"the run in {directory} does not answer: {error.details()}; "
            f"`trinity why --job-dir {directory}` shows why"
        ) from error
    own_waits = _monitor_waits(directory)
    if as_json:
        waits = [*(wait for member in now.members for wait in member.waits), *own_waits]
        print(running_report(directory, now, work, waits).model_dump_json(indent=1))
        return
    _show(now, work, populations, own_waits)


def _stopped_report(job_dir: Path) -> StatusReport:
    plan, summary = read_outline(job_dir), last_summary(job_dir)
    states = _stage_states(summary) if summary else {}
    stages = [
        StageReport(
            name=stage.name,
            state=states.get(stage.name, "pending" if summary else "stopped"),
            newest_checkpoint=newest_checkpoint_step(job_dir, stage.name),
            total_train_steps=stage.total_train_steps,
        )
        for stage in plan.stages
    ]
    return stopped_report(job_dir, plan.label, stages, summary)


def _stage_states(summary: RunSummary) -> dict[str, str]:
    """Returns the states of the stages that were opened: all but the last one had ended."""
    opened = [stage.name for stage in summary.stages if stage.steps or stage.seconds]
    return dict.fromkeys(opened[:-1], FINISHED) | dict.fromkeys(opened[-1:], summary.state)


async def _ask(
    at: ServiceAddresses,
) -> tuple[synchronizer_pb2.GetStatusResponse, buffer_pb2.GetBufferStatusResponse, Populations]:
    async with (
        open_channel(at.synchronizer, at.security) as to_synchronizer,
        open_channel(at.buffer, at.security) as to_buffer,
    ):
        now: synchronizer_pb2.GetStatusResponse
        now = await synchronizer_pb2_grpc.SynchronizerServiceStub(to_synchronizer).GetStatus(
            synchronizer_pb2.GetStatusRequest(), timeout=CALL_SECONDS
        )
        work: buffer_pb2.GetBufferStatusResponse
        work = await buffer_pb2_grpc.BufferServiceStub(to_buffer).GetBufferStatus(
            buffer_pb2.GetBufferStatusRequest(), timeout=CALL_SECONDS
        )
        populations = await _populations(query_pb2_grpc.QueryServiceStub(to_buffer), work)
    return now, label_stages(work, now.experiments), populations


async def _populations(
    queries: query_pb2_grpc.QueryServiceStub, work: buffer_pb2.GetBufferStatusResponse
) -> Populations:
    requests = (query_pb2.GetPopulationRequest(key=stage.key) for stage in work.stages)
    return [await queries.GetPopulation(request, timeout=CALL_SECONDS) for request in requests]


def label_stages(
    work: buffer_pb2.GetBufferStatusResponse, experiments: Iterable[synchronizer_pb2.Experiment]
) -> buffer_pb2.GetBufferStatusResponse:
    """Adds the experiment's label to the names of stages if there are several experiments."""
    if len({stage.key.experiment_id for stage in work.stages}) < 2:
        return work
    labels = {experiment.id: experiment.label for experiment in experiments}
    named = buffer_pb2.GetBufferStatusResponse()
    named.CopyFrom(work)
    for stage in named.stages:
        of = labels.get(stage.key.experiment_id, stage.key.experiment_id)
        stage.key.stage = f"{of} {stage.key.stage}"
    return named


def _show(
    now: synchronizer_pb2.GetStatusResponse,
    work: buffer_pb2.GetBufferStatusResponse,
    populations: Populations,
    own_waits: list[synchronizer_pb2.Wait],
) -> None:
    console = Console()
    for experiment in now.experiments:
        state = _name(synchronizer_pb2.ExperimentState.Name(experiment.state))
        reason = escape(f": {experiment.reason}") if experiment.reason else ""
        console.print(f"[bold]{escape(experiment.label)}[/bold]  {state}{reason}")
        if turn := turn_text(experiment):
            console.print(f"  {escape(turn)}")
        for named in experiment.stages:
            stage_state = _name(synchronizer_pb2.StageState.Name(named.state))
            console.print(f"  {escape(named.name)}  {stage_state}")
    console.print(_work_table(work))
    console.print(*replay_lines(work.stages), sep="", end="")
    console.print(*pipeline_lines(work.stages), *refill_lines(work.stages), sep="", end="")
    for stage, population in zip(work.stages, populations, strict=True):
        if population.last_explore_step:
            console.print(*population_lines(stage.key.stage, population), sep="\n")
            console.print(population_table(population))
    console.print(*refused_lines(work.stages), sep="", end="")
    console.print(*changed_lines(work.stages), sep="", end="")
    console.print(member_table(now))
    console.print(*left_out_lines(now, work), sep="", end="")
    waits = [*(wait for member in now.members for wait in member.waits), *own_waits]
    console.print(_wait_table(waits) if waits else "nothing waits")


def _monitor_waits(job_dir: Path) -> list[synchronizer_pb2.Wait]:
    """Waits of the launcher, which is not a member."""
    absence = MonitorOutage.load_outage(job_dir / MONITOR_FOLDER)
    if absence is None:
        return []
    return [
        synchronizer_pb2.Wait(
            owner="launcher",
            waits_for=absence.monitor,
            reason=f"metrics wait, training goes on: {absence.reason}",
            waited_seconds=max(0.0, time.time() - absence.since),
        )
    ]


def _work_table(work: buffer_pb2.GetBufferStatusResponse) -> Table:
    table = Table("stage", "explore step", "trained step", "pending", "leased", "ready", "stream")
    for stage in work.stages:
        counts = (
            stage.explore_step,
            stage.trained_step,
            stage.num_pending,
            stage.num_leased,
            stage.num_ready,
            stage.num_stream_pending,
        )
        table.add_row(escape(stage.key.stage), *(str(count) for count in counts))
    return table


def replay_lines(stages: Iterable[buffer_pb2.StageStatus]) -> Iterator[str]:
    """Yields a line for each stage that trains samples by priority."""
    for stage in stages:
        if not stage.HasField("replay"):
            continue
        replay = stage.replay
        yield escape(
            f"{stage.key.stage}: {replay.num_trained:,} samples trained, {replay.num_replayed:,} "
            f"rows of batches were trained before, one sample at most {replay.max_uses} times; "
            f"{replay.num_waiting:,} may come again, {replay.num_dropped:,} were dropped "
            "untrained\n"
        )


def pipeline_lines(stages: Iterable[buffer_pb2.StageStatus]) -> Iterator[str]:
    """Yields a line for each taskset that went through a task pipeline."""
    for stage in stages:
        for pipeline in stage.task_pipelines:
            reasons = "; ".join(
                f"{left_out.num_rows:,} by {left_out.reason}"
                for left_out in pipeline.counts.left_out
            )
            yield escape(
                f"{stage.key.stage}: taskset {pipeline.taskset} has {pipeline.num_rows:,} of "
                f"{pipeline.counts.num_read:,} tasks"
                f"{', left out are ' if reasons else ''}{reasons}\n"
            )


def refill_lines(stages: Iterable[buffer_pb2.StageStatus]) -> Iterator[str]:
    """Yields a line for each stage whose newest explore step draws further tasks."""
    for stage in stages:
        if stage.num_refill_tasks and stage.num_recent_runs:
            survival = 1 - stage.num_recent_lost / stage.num_recent_runs
            yield escape(
                f"{stage.key.stage}: explore step {stage.explore_step} has drawn "
                f"{stage.num_refill_tasks:,} further tasks in {stage.refill_round} rounds, as "
                f"{survival:.0%} of the newest runs can be trained\n"
            )


def changed_lines(stages: Iterable[buffer_pb2.StageStatus]) -> Iterator[str]:
    """Yields a line for each setting that was changed after its stage was opened."""
    for stage in stages:
        for change in stage.changes:
            yield escape(f"{stage.key.stage}: changed {change_text(change)}\n")


def refused_lines(stages: Iterable[buffer_pb2.StageStatus]) -> Iterator[str]:
    """Yields a line for each stage of which results were refused."""
    for stage in stages:
        if stage.num_dead_letters:
            yield escape(
                f"{stage.key.stage}: {stage.num_dead_letters:,} results were refused and are kept "
                f"as dead letters, the newest because: {stage.dead_letter_reason}\n"
            )


def left_out_lines(
    now: synchronizer_pb2.GetStatusResponse, work: buffer_pb2.GetBufferStatusResponse
) -> Iterator[str]:
    """Yields a line for each list that did not fit into an answer."""
    counts = {
        "experiments": now.num_experiments_left_out,
        "members": now.num_members_left_out,
        "stages": work.num_stages_left_out,
    }
    yield from (f"{count:,} more {name} are not shown\n" for name, count in counts.items() if count)


def member_table(now: synchronizer_pb2.GetStatusResponse) -> Table:
    """Table of the members and what each is doing."""
    address = Column("address", no_wrap=True)  # a truncated port is useless
    table = Table("member", address, "stage", "doing", "version", "heard")
    for member in now.members:
        role = _name(synchronizer_pb2.Role.Name(member.role))
        heard = f"{member.silent_seconds:.1f} s ago"
        version = "" if member.version < 0 else str(member.version)
        said = (escape(text) for text in (member.address, member.stage, member.activity))
        table.add_row(role, *said, version, heard)
    return table


def _wait_table(waits: list[synchronizer_pb2.Wait]) -> Table:
    table = Table("waits", "for", "because", "since", "gives up in")
    for wait in waits:
        limit = f"{wait.deadline_seconds:.0f} s" if wait.deadline_seconds else "never"
        since = f"{wait.waited_seconds:.1f} s"
        said = (escape(text) for text in (wait.owner, wait.waits_for, wait.reason))
        table.add_row(*said, since, limit)
    return table


def _name(constant: str) -> str:
    """Converts `EXPERIMENT_STATE_RUNNING` to `running`."""
    return constant.rpartition("_")[2].lower()
