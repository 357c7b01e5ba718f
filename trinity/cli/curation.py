"""`trinity exclude`, `include` and `delete`: manual curation of samples."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, TypeVar

import typer

from trinity.api.v1 import query_pb2
from trinity.api.v1.query_pb2_grpc import QueryServiceStub
from trinity.cli.places import FindRun, at_a_run
from trinity.cli.view import StageOption
from trinity.run.conditions import HELP, parse_conditions
from trinity.run.places import RunLocation
from trinity.run.stored import open_stored_experiment

SECONDS = 3600.0
AnswerT = TypeVar("AnswerT")
Request = (
    query_pb2.ExcludeExperiencesRequest
    | query_pb2.IncludeExperiencesRequest
    | query_pb2.DeleteExperiencesRequest
)
ConditionsArgument = Annotated[list[str], typer.Argument(help=HELP, show_default=False)]
ReasonOption = Annotated[
    str, typer.Option("--reason", "-r", help="Why; kept with the samples.", show_default=False)
]
YesOption = Annotated[bool, typer.Option("--yes", help="Do it; else only count.")]


@at_a_run(has_words=True)
def exclude(
    conditions: ConditionsArgument,
    reason: ReasonOption,
    *,
    find_run: FindRun,
    stage: StageOption = None,
    yes: YesOption = False,
) -> None:
    """Keep samples from being trained on; they are still stored and shown."""
    request = query_pb2.ExcludeExperiencesRequest(
        filter=parse_conditions(conditions), reason=reason, dry_run=not yes
    )
    answer: query_pb2.ExcludeExperiencesResponse = _apply(
        lambda queries: queries.ExcludeExperiences, request, find_run(), stage
    )
    done = "are excluded" if yes else "would be excluded: add --yes to do it"
    print(f"{answer.num_excluded:,} samples {done}")
    if answer.num_batched:
        stay = "are in a batch: they stay there, and enter no further batch"
        print(f"{answer.num_batched:,} further samples {stay}")


@at_a_run(has_words=True)
def include(
    conditions: ConditionsArgument,
    *,
    find_run: FindRun,
    stage: StageOption = None,
    yes: YesOption = False,
    reason: Annotated[
        str, typer.Option("--reason", "-r", help="Why; kept in the samples' record.")
    ] = "",
) -> None:
    """Allow excluded samples to be trained on again."""
    request = query_pb2.IncludeExperiencesRequest(
        filter=parse_conditions(conditions), reason=reason, dry_run=not yes
    )
    answer: query_pb2.IncludeExperiencesResponse = _apply(
        lambda queries: queries.IncludeExperiences, request, find_run(), stage
    )
    done = "are included again" if yes else "would be included again: add --yes to do it"
    print(f"{answer.num_included:,} samples {done}")
    if answer.num_too_late:
        print(
            f"{answer.num_too_late:,} further samples stay excluded: their groups were shaped "
            "without them, their contents are removed, or the stage has ended"
        )


@at_a_run(has_words=True)
def delete(
    conditions: ConditionsArgument,
    reason: ReasonOption,
    *,
    find_run: FindRun,
    stage: StageOption = None,
    yes: YesOption = False,
) -> None:
    """Delete the content of samples; their records and the reason are kept."""
    request = query_pb2.DeleteExperiencesRequest(
        filter=parse_conditions(conditions), reason=reason, dry_run=not yes
    )
    answer: query_pb2.DeleteExperiencesResponse = _apply(
        lambda queries: queries.DeleteExperiences, request, find_run(), stage
    )
    if yes:
        print(f"{answer.num_deleted:,} samples with {answer.num_bytes:,} bytes are deleted")
    else:
        print(f"{answer.num_deleted:,} samples would be deleted: add --yes to do it")


def _apply(
    call: Callable[[QueryServiceStub], Callable[..., Awaitable[AnswerT]]],
    request: Request,
    place: RunLocation,
    stage: str | None,
) -> AnswerT:
    """Sends a request about a stage to the buffer of a run, which is started if necessary."""

    async def ask() -> AnswerT:
        async with open_stored_experiment(place, to_change=True) as stored:
            request.key.CopyFrom(stored.key(stage))
            return await call(stored.queries)(request, timeout=SECONDS)

    return asyncio.run(ask())
