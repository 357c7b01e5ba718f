"""`trinity view`: the samples that a run has stored, or one of them in full."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import typer

from trinity.api.v1 import buffer_pb2, query_pb2
from trinity.api.v1.query_pb2_grpc import QueryServiceStub
from trinity.cli.overrides import refuse_ignored
from trinity.cli.places import FindRun, at_a_run
from trinity.data.samples import held_samples, sample_row, samples
from trinity.errors import UserError
from trinity.inspect.session_tree import read_session
from trinity.inspect.tables import (
    RunPlace,
    console,
    population_lines,
    population_table,
    run_of,
    sample_details,
    sample_table,
    session_table,
)
from trinity.run.conditions import HELP, parse_conditions
from trinity.run.places import RunLocation
from trinity.run.stored import StoredExperiment, open_stored_experiment
from trinity.runtime.rpc.limits import CALL_SECONDS

DEFAULT_LIMIT = 20
ID = re.compile(r"[0-9a-fA-F-]+")
WordsArgument = Annotated[
    list[str] | None,
    typer.Argument(help=f"A sample's id, or the beginning of it; or conditions. {HELP}"),
]
StageOption = Annotated[
    str | None, typer.Option("--stage", help="The stage; without it the last one with samples.")
]
SortKey = Literal["reward", "advantage", "tokens"]
SORT_VALUES: Mapping[SortKey, Callable[[query_pb2.ExperienceRecord], float | None]] = {
    "reward": lambda record: record.reward if record.HasField("reward") else None,
    "advantage": lambda record: record.advantage if record.HasField("advantage") else None,
    "tokens": lambda record: float(record.response_length),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownOrder:
    """The order in which samples are shown."""

    latest_first: bool
    sort: SortKey | None = None
    lowest_first: bool = False


JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON lines, contents included.")]


@at_a_run(has_words=True)
def view(
    words: WordsArgument = None,
    *,
    find_run: FindRun,
    stage: StageOption = None,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit", "-n", min=0, help=f"Most samples, else {DEFAULT_LIMIT}; 0 for all."
        ),
    ] = None,
    sort: Annotated[
        SortKey | None,
        typer.Option("--sort", help="Begin with the highest, of all samples that satisfy."),
    ] = None,
    lowest: Annotated[
        bool, typer.Option("--lowest", help="With --sort: begin with the lowest.")
    ] = False,
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
    of_many = {"--limit": limit, "--sort": sort, "--lowest": lowest, "--oldest": oldest}
    if population:
        if asked:
            raise UserError("--population looks at all samples: it takes no conditions")
        refuse_ignored("--population", {**of_many, "--json": as_json})
        asyncio.run(_show_population(find_run(), stage))
        return
    if len(asked) == 1 and "=" not in asked[0]:
        require_sample_id(asked[0])
        refuse_ignored("the id of a sample", of_many)
        asyncio.run(_show_one(find_run(), stage, asked[0], as_json))
        return
    if lowest and sort is None:
        raise UserError("--lowest says where --sort begins: add `--sort reward`")
    order = ShownOrder(latest_first=not oldest, sort=sort, lowest_first=lowest)
    wanted, most = parse_conditions(asked), DEFAULT_LIMIT if limit is None else limit
    asyncio.run(_show_many(find_run(), stage, wanted, most, order, as_json))


def require_sample_id(word: str) -> None:
    """Raises UserError if a word cannot be the beginning of a sample's id."""
    if not ID.fullmatch(word):
        raise UserError(
            f"{word!r} is neither a sample's id, or its beginning, nor a condition such as "
            "`reward=0.5..1`: `trinity view --help` lists them"
        )


async def _show_population(place: RunLocation, stage: str | None) -> None:
    async with open_stored_experiment(place) as stored:
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


async def _show_one(place: RunLocation, stage: str | None, sample: str, as_json: bool) -> None:
    async with open_stored_experiment(place) as stored:
        key = stored.key(stage)
        answer: query_pb2.GetExperienceResponse = await stored.queries.GetExperience(
            query_pb2.GetExperienceRequest(key=key, experience_id=sample), timeout=CALL_SECONDS
        )
        if as_json:
            print(json.dumps(sample_row(answer.experience), ensure_ascii=False))
            return
        tree = await read_session(stored.queries, key, answer.experience)
    out = console()
    out.print(sample_details(answer))
    if tree is not None:
        out.print(session_table(tree))


async def _sorted(
    queries: QueryServiceStub,
    key: buffer_pb2.StageKey,
    wanted: query_pb2.ExperienceFilter,
    limit: int,
    order: ShownOrder,
) -> AsyncIterator[query_pb2.ExperienceRecord]:
    """Yields the samples with the highest values, those of one run together.

    All are looked at without their contents, and few are kept.
    """
    assert order.sort is not None
    value = SORT_VALUES[order.sort]
    measured = [
        (value(record), record.id, run_of(record))
        async for record in samples(queries, key, wanted, latest_first=order.latest_first)
        if value(record) is not None
    ]
    measured.sort(key=lambda entry: entry[0] or 0.0, reverse=not order.lowest_first)
    shown = measured[:limit] if limit else measured
    places: dict[RunPlace, int] = {}
    for number, (_, _, run) in enumerate(shown):
        places.setdefault(run, number)
    for _, sample, _ in sorted(shown, key=lambda entry: places[entry[2]]):
        request = query_pb2.GetExperienceRequest(key=key, experience_id=sample)
        answer: query_pb2.GetExperienceResponse = await queries.GetExperience(
            request, timeout=CALL_SECONDS
        )
        yield answer.experience


async def _show_many(
    place: RunLocation,
    stage: str | None,
    wanted: query_pb2.ExperienceFilter,
    limit: int,
    order: ShownOrder,
    as_json: bool,
) -> None:
    async with open_stored_experiment(place) as stored:
        if order.sort is None:
            found = samples(
                stored.queries,
                stored.key(stage),
                wanted,
                limit=limit,
                latest_first=order.latest_first,
                with_content=True,
            )
        else:
            found = _sorted(stored.queries, stored.key(stage), wanted, limit, order)
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
    held = ", ".join(f"{number:,} {name}" for name, number in held_samples(stage).items())
    return f"stage {stage.key.stage} ({stage.state}): {held or 'no samples'}"
