"""`trinity lineage STEP`: the samples of a train step, and the weights that made them."""

import asyncio
import json
from pathlib import Path
from typing import Annotated

import typer

from trinity.api.v1 import query_pb2
from trinity.cli.overrides import refuse_ignored
from trinity.cli.places import FindRun, at_a_run
from trinity.cli.view import JsonOption, StageOption
from trinity.data.samples import sample_row, step_rows
from trinity.inspect.origin import OriginWalk
from trinity.inspect.session_tree import ID_DIGITS, read_session
from trinity.inspect.tables import (
    console,
    run_of,
    sanitize_terminal,
    session_table,
    step_header,
    step_table,
)
from trinity.run.places import RunLocation
from trinity.run.stored import open_stored_experiment
from trinity.types import JsonObject

DIFFERS = 1


@at_a_run(has_words=True)
def lineage(
    step: Annotated[
        int,
        typer.Argument(
            min=1, help="The train step, or the version of the weights.", show_default=False
        ),
    ],
    *,
    find_run: FindRun,
    stage: StageOption = None,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            help="Walk from this version of the weights through all batches before it to each "
            "answer of the model, compute every digest again, and report all that differs (exit "
            "code 1). It proves the record, not the arithmetic.",
        ),
    ] = False,
    sessions: Annotated[
        bool,
        typer.Option("--sessions", help="Show below it the calls of each run as a tree."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show which samples moved a train step: from which task, made by which weights, with which
    reward, advantage and ratio."""
    if sessions:
        refuse_ignored("--sessions", {"--verify": verify, "--json": as_json})
    if verify:
        asyncio.run(_verify(find_run(), stage, step, as_json))
    else:
        asyncio.run(_show(find_run(), stage, step, as_json=as_json, with_sessions=sessions))


async def _verify(place: RunLocation, stage: str | None, version: int, as_json: bool) -> None:
    async with open_stored_experiment(place) as stored:
        job_dir = place if isinstance(place, Path) else None
        walk = OriginWalk(queries=stored.queries, key=stored.key(stage), job_dir=job_dir)
        report = await walk.walk_from(version)
    if as_json:
        for row in report.rows:
            print(json.dumps(row))
        for text in report.faults:
            print(json.dumps({"differs": text}))
    else:
        print(*map(sanitize_terminal, report.lines(version)), sep="\n")
    if report.faults:
        raise typer.Exit(DIFFERS)


async def _show(
    place: RunLocation, stage: str | None, step: int, *, as_json: bool, with_sessions: bool
) -> None:
    async with open_stored_experiment(place) as stored:
        key, queries, out = stored.key(stage), stored.queries, console()
        head, rows = await step_rows(queries, key, step)
        if as_json:
            for row in rows:
                print(json.dumps(_row(row, head.rows_from_run), ensure_ascii=False))
            return
        out.print(step_header(key.stage, head))
        out.print(step_table(rows))
        used = [row.experience for row in rows if row.HasField("experience")] * with_sessions
        source = head.rows_from if head.HasField("rows_from") else key
        for record in {run_of(record): record for record in used}.values():
            if tree := await read_session(queries, source, record):
                out.print(f"\nsample {record.id[:ID_DIGITS]}", session_table(tree))


def _row(row: query_pb2.StepRow, run: str) -> JsonObject:
    """The row as JSON; `run` is the other run that stored the sample, or empty."""
    if row.WhichOneof("source") == "experience":
        row.experience.uses.append(row.use)
        return sample_row(row.experience) | ({"source_run": run} if run else {})
    return {
        "train_step": row.use.step,
        "place": row.use.position,
        "weight": row.use.weight,
        "row_index": row.row_index,
        "row": json.loads(row.row_json),
    }
