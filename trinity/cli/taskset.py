"""`trinity taskset`: submits and manages tasksets of a buffer."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from trinity.cli.overrides import refuse_ignored
from trinity.client import AsyncTasksets, SubmitResult, TasksetInfo
from trinity.data.rows import row_name, rows_to_json
from trinity.errors import UserError
from trinity.run.output import pluralize
from trinity.run.runs import ConfigOption, JobDirOption, find_job_dir, running_stack
from trinity.run.stored import retry_until_ready, running_services

ValueT = TypeVar("ValueT")
BufferCall = Callable[[AsyncTasksets], Awaitable[ValueT]]

SHOWN_REFUSALS = 20
MAX_SHOWN_BYTES = 1024 * 1024
"""Largest size of a row that is shown."""
REFUSED = 3

app = typer.Typer(
    help="Submit and manage tasksets of a buffer. The buffer of a stopped run is started for the "
    "command, and stopped again.",
    no_args_is_help=True,
)

BufferOption = Annotated[
    str,
    typer.Option("--buffer", help="The buffer's address, host:port; else that of the run."),
]
TenantOption = Annotated[str, typer.Option("--tenant", help="Tenant of the tasksets.")]
NameArgument = Annotated[str, typer.Argument(help="The taskset's name or id.", show_default=False)]
FileArgument = Annotated[
    Path,
    typer.Argument(help="A jsonl, json, csv, tsv, parquet or arrow file.", show_default=False),
]


@dataclass(frozen=True, slots=True)
class RowFile:
    """The rows of a file, read from the start on each iteration."""

    path: Path

    def __iter__(self) -> Iterator[str]:
        with self.path.open("rb") as stream:
            yield from rows_to_json(stream, str(self.path))


@app.command()
def submit(
    file: FileArgument,
    name: Annotated[str, typer.Option("--name", help="Name of the taskset.", show_default=False)],
    queue: Annotated[bool, typer.Option("--queue", help="Add to a queue of this name.")] = False,
    request_id: Annotated[
        str | None,
        typer.Option(help="Id of an interrupted submission, to resume it."),
    ] = None,
    buffer: BufferOption = "",
    tenant: TenantOption = "default",
    config: ConfigOption = None,
    job_dir: JobDirOption = None,
) -> None:
    """Store the rows of a file under a name.

    Exit code 0: all rows are stored. 3: some were refused; the others are stored.
    """
    if not file.is_file():
        raise UserError(f"there is no file {file}: correct the path")

    async def send(tasksets: AsyncTasksets) -> SubmitResult:
        return await tasksets.submit(name, RowFile(file), is_queue=queue, request_id=request_id)

    done = _call_buffer(send, buffer, tenant, config, job_dir)
    _show_submission(name, done)
    if done.num_refused:
        raise typer.Exit(REFUSED)


@app.command("list")
def list_tasksets(
    buffer: BufferOption = "",
    tenant: TenantOption = "default",
    config: ConfigOption = None,
    job_dir: JobDirOption = None,
) -> None:
    """List all tasksets, the newest first."""
    found = _call_buffer(
        lambda tasksets: tasksets.list(), buffer, tenant, config, job_dir, to_change=False
    )
    name = Column("name", overflow="fold")  # ids are to be copied whole
    table = Table(name, "rows", "state", "stages", "since", "source")
    for listed in found:
        since = f"{listed.created_at.astimezone():%Y-%m-%d %H:%M}"
        counts = (f"{listed.num_rows:,}", str(listed.state), str(listed.num_stages))
        table.add_row(
            escape(listed.name or listed.taskset_id), *counts, since, escape(_place(listed))
        )
    Console().print(table)


@app.command()
def show(
    taskset: NameArgument,
    rows: Annotated[int, typer.Option(min=0, max=100, help="Rows to show.")] = 3,
    first: Annotated[int, typer.Option(min=0, help="The first row to show.")] = 0,
    buffer: BufferOption = "",
    tenant: TenantOption = "default",
    config: ConfigOption = None,
    job_dir: JobDirOption = None,
) -> None:
    """Describe a taskset and show some of its rows."""

    async def get(tasksets: AsyncTasksets) -> TasksetInfo:
        return await tasksets.get(taskset, first_row=first, num_rows=rows)

    found = _call_buffer(get, buffer, tenant, config, job_dir, to_change=False)
    what = f"{'queue' if found.is_queue else 'taskset'} {found.name or found.taskset_id}"
    print(f"{what}: {pluralize(found.num_rows, 'row')}, {found.state}")
    print(f"  id       {found.taskset_id}")
    print(f"  since    {found.created_at.astimezone():%Y-%m-%d %H:%M:%S}")
    print(f"  stages   {found.num_stages}")
    if found.source:
        print(f"  source   {_place(found)}")
    if found.num_refused:
        print(f"  refused  {pluralize(found.num_refused, 'row')}")
    for line in _pipeline_lines(found):
        print(line)
    _print_rows(found, first, rows)


@app.command()
def delete(
    taskset: NameArgument,
    buffer: BufferOption = "",
    tenant: TenantOption = "default",
    config: ConfigOption = None,
    job_dir: JobDirOption = None,
) -> None:
    """Delete a taskset that no stage needs."""
    num_rows = _call_buffer(
        lambda tasksets: tasksets.delete(taskset), buffer, tenant, config, job_dir
    )
    print(f"taskset {taskset} is deleted, {pluralize(num_rows, 'row')}")


@app.command()
def close(
    taskset: NameArgument,
    buffer: BufferOption = "",
    tenant: TenantOption = "default",
    config: ConfigOption = None,
    job_dir: JobDirOption = None,
) -> None:
    """Close a queue to further tasks: training ends when its tasks are used up."""
    num_rows = _call_buffer(
        lambda tasksets: tasksets.close_queue(taskset), buffer, tenant, config, job_dir
    )
    print(f"queue {taskset} is closed with {pluralize(num_rows, 'task')}")


def _call_buffer(
    question: BufferCall[ValueT],
    buffer: str,
    tenant: str,
    config: Path | None,
    job_dir: Path | None,
    *,
    to_change: bool = True,
) -> ValueT:
    """Asks the buffer at the address, or else the run's; a copied run allows only reads."""

    async def ask() -> ValueT:
        async with _tasksets(buffer, tenant, config, job_dir, to_change) as tasksets:
            return await question(tasksets)

    return asyncio.run(ask())


@contextlib.asynccontextmanager
async def _tasksets(
    buffer: str, tenant: str, config: Path | None, job_dir: Path | None, to_change: bool
) -> AsyncIterator[AsyncTasksets]:
    if buffer:
        refuse_ignored("--buffer", {"--config": config, "--job-dir": job_dir})
        async with AsyncTasksets(buffer, tenant=tenant) as tasksets:
            yield tasksets
        return
    directory = find_job_dir(config, job_dir)
    running_stack(directory)  # raises if there is no run, or if one is being started or stopped
    async with (
        running_services(directory, to_change=to_change) as found,
        AsyncTasksets(found.buffer, tenant=tenant, security=found.security) as tasksets,
    ):
        await retry_until_ready(tasksets.list)
        yield tasksets


def _place(taskset: TasksetInfo) -> str:
    """A source without the fingerprint of its content."""
    return (
        taskset.source.rpartition("|")[0].rstrip("|").replace("|", "  ") if taskset.source else ""
    )


def _pipeline_lines(taskset: TasksetInfo) -> Iterator[str]:
    """Yields lines on the result of a task pipeline, if there is one."""
    if taskset.pipeline is None:
        return
    yield f"  pipeline {taskset.num_rows:,} of {taskset.pipeline.num_read:,} rows are left"
    for reason, number in taskset.pipeline.left_out.items():
        yield f"    {number:,} left out by {reason}"
    if weights := taskset.pipeline.ordered_by:
        listed = ", ".join(f"{name} ({weight:g})" for name, weight in weights.items())
        yield f"    ordered by {listed}"


def _print_rows(found: TasksetInfo, first: int, count: int) -> None:
    """Prints the rows that arrived, and a note on those that did not."""
    console = Console()
    for place, row in enumerate(found.rows):
        of_source = f", row {found.source_rows[place]} of the source" if found.source_rows else ""
        text = json.dumps(row, ensure_ascii=False)
        if (num_bytes := len(text.encode(errors="surrogatepass"))) > MAX_SHOWN_BYTES:
            print(f"row {first + place}{of_source}: not shown, as it has {num_bytes:,} bytes")
            continue
        console.print(f"row {first + place}{of_source}", highlight=False)
        console.print_json(data=row)
    following = first + len(found.rows)
    if following < min(first + count, found.num_rows):
        print(f"the next rows are large: --first {following} continues with them")


def _show_submission(name: str, done: SubmitResult) -> None:
    print(
        f"taskset {name}: {pluralize(done.num_stored, 'row')} stored, {done.num_refused:,} refused"
    )
    for refusal in done.refused[:SHOWN_REFUSALS]:
        print(f"  {row_name(refusal.index)}: {refusal.reason}")
    if done.num_refused > SHOWN_REFUSALS:
        print(f"  and {done.num_refused - SHOWN_REFUSALS:,} more")
