"""`trinity feedback`: sends the rewards that samples wait for."""

import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from trinity.api.v1 import query_pb2
from trinity.cli.places import FindRun, at_a_run
from trinity.cli.view import StageOption
from trinity.errors import RunFailed, UserError
from trinity.run.feedback import give_feedback


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
    find_run: FindRun,
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
    done = asyncio.run(give_feedback(find_run(), rewards, stage=stage, reason=reason))
    print(f"{done.num_set:,} rewards are set, {done.num_known:,} were known")
    if done.refused:
        lines = [f"{sample}: {why}" for sample, why in done.refused.items()]
        raise RunFailed(f"{len(lines):,} rewards are refused\n" + "\n".join(lines))


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
