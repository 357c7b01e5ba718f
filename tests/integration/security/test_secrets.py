"""No password, token or key stands in a log, a result or the list of processes."""

import asyncio
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.model_free.experiment import experiment_plan
from tests.model_free.stack import model_free_services
from trinity.launch.run import Run
from trinity.progress.reporter import make_reporter
from trinity.progress.summary import SUMMARY_FILE

RUN_SECONDS = 150
SAMPLE_SECONDS = 0.2
SHORTEST = 16
"""Characters of what is looked for: a shorter text could stand somewhere by chance."""


@dataclass(slots=True)
class Seen:
    """Everything that a run showed to others on the machine."""

    commands: set[str]
    environments: set[str]


def secrets_in(job_dir: Path) -> dict[str, str]:
    """Every secret value by the file that holds it."""
    infra = job_dir / "infra"
    found = {}
    for path in (*(infra / "secrets").iterdir(), *(infra / "security").rglob("*")):
        if path.is_file() and not path.name.endswith((".crt", "token-keys.pem")):
            found[str(path.relative_to(infra))] = _heart_of(path.read_text())
    return found


def _heart_of(text: str) -> str:
    """What is secret in it: of an address the password, of a PEM file a line of its key."""
    if match := re.search(r"://[^:]+:([^@]+)@", text):
        return match[1]
    if "PRIVATE KEY" in text:
        return text.splitlines()[1]
    return text.strip()


def files_to_search(job_dir: Path) -> Iterator[Path]:
    infra = job_dir / "infra"
    kept = [infra / "secrets", infra / "security", infra / "nats" / "nats.conf"]
    for path in job_dir.rglob("*"):
        if path.is_file() and not any(path == one or one in path.parents for one in kept):
            yield path


async def watch_processes(seen: Seen, root: psutil.Process) -> None:
    """What `ps` shows, again and again."""
    while True:
        for process in root.children(recursive=True):
            try:
                seen.commands.add(" ".join(process.cmdline()))
                seen.environments.add(str(process.environ()))
            except psutil.Error:
                continue
        await asyncio.sleep(SAMPLE_SECONDS)


@pytest.mark.timeout(280)
async def test_no_secret_is_in_a_log_a_result_or_the_list_of_processes(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    plan = experiment_plan(
        tmp_path,
        buffer={"total_steps": 3},
        monitor={"monitor_type": "none"},
        log={"level": "DEBUG"},
    )
    run = Run(
        plan=plan, reporter=make_reporter(plan.label), services=model_free_services(), secure=True
    )
    seen = Seen(set(), set())
    watching = asyncio.create_task(watch_processes(seen, psutil.Process()))
    async with asyncio.timeout(RUN_SECONDS):
        summary = await run.execute()
    watching.cancel()
    assert summary.state == "finished"
    secrets = secrets_in(plan.job_path)
    kinds = [name.rpartition("/")[2] for name in secrets]
    assert {"token", "tls.key", "ca.key", "token-signing.key", "nats-buffer-password"} <= set(kinds)
    assert min(map(len, secrets.values())) >= SHORTEST
    files = list(files_to_search(plan.job_path))
    names = {path.name for path in files}
    assert {SUMMARY_FILE, "buffer.log", "explorer.log", "nats.log", "postgres.log"} <= names
    shown = capfd.readouterr()
    texts = {str(path): path.read_bytes() for path in files}
    texts |= {"what was printed": (shown.out + shown.err).encode()}
    texts |= {"ps": "\n".join(seen.commands | seen.environments).encode()}
    assert "services.buffer" in "\n".join(seen.commands)
    leaks = [
        f"{name} in {place}"
        for name, secret in secrets.items()
        for place, text in texts.items()
        if secret.encode() in text
    ]
    assert not leaks
