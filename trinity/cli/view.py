"""`trinity view`: the samples that a run has stored, or one of them in full."""

import asyncio
import json
import re
from pathlib import Path
from typing import Annotated

import typer

from trinity.api.v1 import query_pb2
from trinity.cli.runs import ConfigOption, JobDirOption, find_job_dir
from trinity.errors import UserError
from trinity.inspect.conditions import HELP, parse_conditions
from trinity.inspect.open import StoredExperiment, open_stored_experiment
from trinity.inspect.samples import sample_row, samples, state_name
from trinity.inspect.tables import (
    console,
    population_lines,
    population_table,
    sample_details,
    sample_table,
)
from trinity.rpc.limits import CALL_SECONDS

DEFAULT_LIMIT = 20
ID = re.compile(r"[0-9a-fA-F-]+")
WordsArgument = Annotated[
    list[str] | None,
    typer.Argument(help=f"A sample's id, or the beginning of it; or conditions. {HELP}"),
]
StageOption = Annotated[
    str | None, typer.Option("--stage", help="The stage; without it the last one with samples.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON lines, contents included.")]


def view(
    words: WordsArgument = None,
    config: ConfigOption = None,
    job_dir: JobDirOption = None,
    stage: StageOption = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=0, help="Most samples; 0 for all.")
    ] = DEFAULT_LIMIT,
    oldest: Annotated[bool, typer.Option("--oldest", help="Begin with the oldest.")] = False,
    population: Annotated[
        bool,
        typer.Option(
            "--population", help="Compare what was trained on with all that was generated."
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show the newest samples, those that satisfy conditions, or one of them in full.

    A stopped run's database is opened for the command, and closed again.
    """
    asked = words or []
    directory = find_job_dir(config, job_dir)
    if population:
        if asked or as_json:
            raise UserError("--population looks at all samples: it takes no conditions")
        asyncio.run(_show_population(directory, stage))
        return
    if len(asked) == 1 and "=" not in asked[0]:
        require_sample_id(asked[0])
        asyncio.run(_show_one(directory, stage, asked[0], as_json))
    else:
        wanted = parse_conditions(asked)
        asyncio.run(_show_many(directory, stage, wanted, limit, not oldest, as_json))


def require_sample_id(word: str) -> None:
    """Raises UserError if a word cannot be the beginning of a sample's id."""
    if not ID.fullmatch(word):
        raise UserError(
            f"{word!r} is neither a sample's id, or its beginning, nor a condition such as "
            "`reward=0.5..1`: `trinity view --help` lists them"
        )


async def _show_population(directory: Path, stage: str | None) -> None:
    async with open_stored_experiment(directory) as stored:
        key = stored.key(stage)
        found: query_pb2.GetPopulationResponse = await stored.queries.GetPopulation(
            query_pb2.GetPopulationRequest(key=key), timeout=CALL_SECONDS
        )
    out = console()
    if not found.last_explore_step:
        out.print(f"stage {key.stage} has nothing to compare: no explore step is settled")
        return
    out.print(*population_lines(key.stage, found), sep="\n")
    out.print(population_table(found))


async def _show_one(directory: Path, stage: str | None, sample: str, as_json: bool) -> None:
    async with open_stored_experiment(directory) as stored:
        answer: query_pb2.GetExperienceResponse = await stored.queries.GetExperience(
            query_pb2.GetExperienceRequest(key=stored.key(stage), experience_id=sample),
            timeout=CALL_SECONDS,
        )
    if as_json:
        print(json.dumps(sample_row(answer.experience), ensure_ascii=False))
    else:
        console().print(sample_details(answer))


async def _show_many(
    directory: Path,
    stage: str | None,
    wanted: query_pb2.ExperienceFilter,
    limit: int,
    latest_first: bool,
    as_json: bool,
) -> None:
    async with open_stored_experiment(directory) as stored:
        found = samples(
            stored.queries,
            stored.key(stage),
            wanted,
            limit=limit,
            latest_first=latest_first,
            with_content=True,
        )
        if as_json:
            async for record in found:
                print(json.dumps(sample_row(record), ensure_ascii=False))
            return
        if limit == 0:
            raise UserError("--limit 0 shows every sample: add --json, or use `trinity export`")
        records = [record async for record in found]
    _print(stored, stage, records, limit)


def _print(
    stored: StoredExperiment,
    stage: str | None,
    records: list[query_pb2.ExperienceRecord],
    limit: int,
) -> None:
    out, shown = console(), stored.stage(stage)
    out.print(_stage_summary(shown))
    if records:
        out.print(sample_table(records))
    elif shown.counts:
        out.print("no sample satisfies these conditions")
    if len(records) == limit:
        out.print(f"only {limit} are shown: see --limit, --json and `trinity export`")


def _stage_summary(stage: query_pb2.StoredStage) -> str:
    numbers: dict[str, int] = {}
    for count in stage.counts:
        name = state_name(count.state)
        numbers[name] = numbers.get(name, 0) + count.count
    held = ", ".join(f"{number:,} {name}" for name, number in numbers.items() if name != "derived")
    return f"stage {stage.key.stage} ({stage.state}): {held or 'no samples'}"
