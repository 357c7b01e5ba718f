"""`trinity lineage STEP`: the samples of a train step, and the weights that made them."""

import asyncio
import json
from typing import Annotated

import typer

from trinity.api.v1 import query_pb2
from trinity.cli.places import FindRun, at_a_run
from trinity.cli.view import JsonOption, StageOption
from trinity.data.samples import sample_row, step_rows
from trinity.inspect.tables import console, step_header, step_table
from trinity.run.places import RunLocation
from trinity.run.stored import open_stored_experiment
from trinity.types import JsonObject


@at_a_run(has_words=True)
def lineage(
    step: Annotated[int, typer.Argument(min=1, help="The train step.", show_default=False)],
    *,
    find_run: FindRun,
    stage: StageOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show which samples moved a train step: from which task, made by which weights, with which
    reward, advantage and ratio."""
    asyncio.run(_show(find_run(), stage, step, as_json))


async def _show(place: RunLocation, stage: str | None, step: int, as_json: bool) -> None:
    async with open_stored_experiment(place) as stored:
        key = stored.key(stage)
        head, rows = await step_rows(stored.queries, key, step)
    if as_json:
        for row in rows:
            print(json.dumps(_row(row, head.rows_from_run), ensure_ascii=False))
        return
    out = console()
    out.print(step_header(key.stage, head))
    out.print(step_table(rows))


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
