"""Commands of `trinity` that look into a run."""

import asyncio
from pathlib import Path

from typer.testing import CliRunner

from trinity.cli.main import make_app

WIDTH = {"COLUMNS": "200"}


async def trinity(*words: str, job_dir: Path) -> tuple[str, str, BaseException | None]:
    """What a command prints, says beside it, and what it fails with."""
    arguments = [*words, "--job-dir", str(job_dir)]
    done = await asyncio.to_thread(CliRunner(env=WIDTH).invoke, make_app(arguments), arguments)
    return done.stdout, done.stderr, done.exception
