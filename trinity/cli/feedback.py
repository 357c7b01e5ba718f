"""`trinity feedback`: sends the rewards that samples wait for."""

import asyncio
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from trinity.api.v1 import query_pb2
from trinity.cli.places import at_a_run
from trinity.cli.view import StageOption
from trinity.errors import RunFailed, UserError
from trinity.inspect.open import open_stored_experiment
from trinity.run.places import RunLocation

AT_ONCE = 1000
SECONDS = 120.0


@at_a_run(has_words=True)
def feedback(
    file: Annotated[
        str,
        typer.Argument(
            help='JSON lines {"id": ..., "reward": ..., "reward_parts": {...}}; - reads them from '
            "standard input.",
            show_default=False,
        ),
    ],
    *,
    place: RunLocation,
    stage: StageOption = None,
    reason: Annotated[
        str,
        typer.Option("--reason", "-r", help="Why you give them; kept in the samples' record."),
    ] = "",
) -> None:
    """Give samples the rewards that they wait for (`buffer.await_feedback`).

    May be repeated: a reward that was given before is not set again. Exit code 1: one is refused.
    """
    rewards = list(_read(file))
    asyncio.run(_give(place, stage, rewards, reason))


def _read(file: str) -> Iterator[query_pb2.Feedback]:
    try:
        lines = sys.stdin.read() if file == "-" else Path(file).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {file}: {error}") from error
    for number, line in enumerate(lines.splitlines(), 1):
        if line.strip():
            try:
                row = json.loads(line)
                yield query_pb2.Feedback(
                    experience_id=row["id"],
                    reward=row["reward"],
                    reward_parts=row.get("reward_parts") or {},
                )
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise UserError(
                    f'{file}:{number} is not {{"id": ..., "reward": ...}}: {error}'
                ) from error


async def _give(
    place: RunLocation, stage: str | None, rewards: list[query_pb2.Feedback], reason: str
) -> None:
    num_set = num_known = 0
    refused: list[query_pb2.RefusedFeedback] = []
    async with open_stored_experiment(place, to_change=True) as stored:
        for first in range(0, len(rewards), AT_ONCE):
            request = query_pb2.GiveFeedbackRequest(
                key=stored.key(stage), feedback=rewards[first : first + AT_ONCE], reason=reason
            )
            answer: query_pb2.GiveFeedbackResponse = await stored.queries.GiveFeedback(
                request, timeout=SECONDS
            )
            num_set += answer.num_set
            num_known += answer.num_known
            refused += answer.refused
    print(f"{num_set:,} rewards are set, {num_known:,} were known")
    _complain(refused)


def _complain(refused: Iterable[query_pb2.RefusedFeedback]) -> None:
    lines = [f"{feedback.experience_id}: {feedback.reason}" for feedback in refused]
    if lines:
        raise RunFailed(f"{len(lines):,} rewards are refused\n" + "\n".join(lines))
