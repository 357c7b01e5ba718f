"""`trinity ls`: the runs below a directory, or the experiments of a deployment."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from trinity.api.v1 import synchronizer_pb2
from trinity.cli.places import BufferOption, ContextOption, SynchronizerOption, named_place
from trinity.errors import UserError
from trinity.run.contexts import Contexts
from trinity.run.launch.resume import PLAN_FILE
from trinity.run.places import Deployment
from trinity.run.progress.summary import RunSummary
from trinity.run.runs import default_root, run_directories, running_stack, stopped_experiment

_STATE = "EXPERIMENT_STATE_"


def ls(
    root: Annotated[
        Path | None,
        typer.Argument(help="The directory of runs; else checkpoints/.", show_default=False),
    ] = None,
    buffer: BufferOption = "",
    synchronizer: SynchronizerOption = "",
    context: ContextOption = "",
) -> None:
    """List the runs below a directory, the newest first, or the experiments of a deployment."""
    if buffer or synchronizer or context or (root is None and Contexts.load().current):
        place = named_place(buffer=buffer, synchronizer=synchronizer, context=context)
        assert isinstance(place, Deployment), "one was named"
        _print(("experiment", "state", "id"), _remote_rows(place))
    else:
        _print(("run", "state", "steps", "best", "started"), _local_rows(root or default_root()))


def _print(columns: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> None:
    table = Table(Column(columns[0], overflow="fold"), *columns[1:])
    for row in rows:
        table.add_row(*map(escape, row))
    Console().print(table)


def _remote_rows(place: Deployment) -> Iterator[tuple[str, ...]]:
    for found in asyncio.run(place.experiments()):
        name = synchronizer_pb2.ExperimentState.Name(found.state).removeprefix(_STATE).lower()
        yield found.label, name, found.id


def _local_rows(root: Path) -> Iterator[tuple[str, ...]]:
    """Yields a row for each run that was started below a directory."""
    found = [
        (path, (path / PLAN_FILE).stat().st_mtime) for path in run_directories(root, PLAN_FILE)
    ]
    if not found:
        raise UserError(f"no run was started below {root}")
    for path, began in sorted(found, key=lambda entry: entry[1], reverse=True):
        yield (str(path), *_outcome(path), f"{datetime.fromtimestamp(began, UTC):%Y-%m-%d %H:%M}")


def _outcome(directory: Path) -> tuple[str, str, str]:
    """Returns a run's state, its train steps and its best evaluation."""
    try:
        if running_stack(directory) is not None:
            return "running", "", ""
        experiment, summary = stopped_experiment(directory)
    except UserError:  # being started or stopped, or a plan of another release
        return "unknown", "", ""
    return experiment.state, *_figures(summary)


def _figures(summary: RunSummary | None) -> tuple[str, str]:
    if summary is None:
        return "", ""
    best = summary.best_evaluation
    return str(summary.steps), f"{best.headline().mean:.3f}" if best is not None else ""
