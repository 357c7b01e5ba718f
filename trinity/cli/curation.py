"""`trinity exclude`, `include` and `delete`: manual curation of samples."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from trinity.api.v1 import query_pb2
from trinity.cli.view import StageOption
from trinity.inspect.conditions import HELP, parse_conditions
from trinity.inspect.open import open_stored_experiment
from trinity.run.runs import ConfigOption, JobDirOption, find_job_dir

SECONDS = 3600.0
ConditionsArgument = Annotated[list[str], typer.Argument(help=HELP, show_default=False)]
ReasonOption = Annotated[
    str, typer.Option("--reason", "-r", help="Why; kept with the samples.", show_default=False)
]
YesOption = Annotated[bool, typer.Option("--yes", help="Do it; else only count.")]


def exclude(
    conditions: ConditionsArgument,
    reason: ReasonOption,
    config: ConfigOption = None,
    job_dir: JobDirOption = None,
    stage: StageOption = None,
    yes: YesOption = False,
) -> None:
    """Keep samples from being trained on; they are still stored and shown."""
    wanted = parse_conditions(conditions)
    asyncio.run(_exclude(find_job_dir(config, job_dir), stage, wanted, reason, yes))


async def _exclude(
    directory: Path, stage: str | None, wanted: query_pb2.ExperienceFilter, reason: str, yes: bool
) -> None:
    async with open_stored_experiment(directory, to_change=True) as stored:
        request = query_pb2.ExcludeExperiencesRequest(
            key=stored.key(stage), filter=wanted, reason=reason, dry_run=not yes
        )
        answer: query_pb2.ExcludeExperiencesResponse = await stored.queries.ExcludeExperiences(
            request, timeout=SECONDS
        )
    done = "are excluded" if yes else "would be excluded: add --yes to do it"
    print(f"{answer.num_excluded:,} samples {done}")
    if answer.num_batched:
        stay = "are in a batch: they stay there, and enter no further batch"
        print(f"{answer.num_batched:,} further samples {stay}")


def include(
    conditions: ConditionsArgument,
    config: ConfigOption = None,
    job_dir: JobDirOption = None,
    stage: StageOption = None,
    yes: YesOption = False,
    reason: Annotated[
        str, typer.Option("--reason", "-r", help="Why; kept in the samples' record.")
    ] = "",
) -> None:
    """Allow excluded samples to be trained on again."""
    wanted = parse_conditions(conditions)
    asyncio.run(_include(find_job_dir(config, job_dir), stage, wanted, reason, yes))


async def _include(
    directory: Path,
    stage: str | None,
    wanted: query_pb2.ExperienceFilter,
    reason: str,
    yes: bool,
) -> None:
    async with open_stored_experiment(directory, to_change=True) as stored:
        request = query_pb2.IncludeExperiencesRequest(
            key=stored.key(stage), filter=wanted, dry_run=not yes, reason=reason
        )
        answer: query_pb2.IncludeExperiencesResponse = await stored.queries.IncludeExperiences(
            request, timeout=SECONDS
        )
    done = "are included again" if yes else "would be included again: add --yes to do it"
    print(f"{answer.num_included:,} samples {done}")
    if answer.num_too_late:
        print(
            f"{answer.num_too_late:,} further samples stay excluded: their groups were shaped "
            "without them, their contents are removed, or the stage has ended"
        )


def delete(
    conditions: ConditionsArgument,
    reason: ReasonOption,
    config: ConfigOption = None,
    job_dir: JobDirOption = None,
    stage: StageOption = None,
    yes: YesOption = False,
) -> None:
    """Delete the content of samples; their records and the reason are kept."""
    wanted = parse_conditions(conditions)
    asyncio.run(_delete(find_job_dir(config, job_dir), stage, wanted, reason, yes))


async def _delete(
    directory: Path,
    stage: str | None,
    wanted: query_pb2.ExperienceFilter,
    reason: str,
    yes: bool,
) -> None:
    async with open_stored_experiment(directory, to_change=True) as stored:
        request = query_pb2.DeleteExperiencesRequest(
            key=stored.key(stage), filter=wanted, reason=reason, dry_run=not yes
        )
        answer: query_pb2.DeleteExperiencesResponse = await stored.queries.DeleteExperiences(
            request, timeout=SECONDS
        )
    if yes:
        print(f"{answer.num_deleted:,} samples with {answer.num_bytes:,} bytes are deleted")
    else:
        print(f"{answer.num_deleted:,} samples would be deleted: add --yes to do it")
