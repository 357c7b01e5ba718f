"""`trinity run` says what holds a run, and ends with a reason when a part is gone for good."""

import asyncio
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.integration.stalls.stalled import PATIENCE_SECONDS, send
from tests.support.model_free.experiment import experiment_plan
from tests.support.model_free.stack import model_free_stack
from trinity.api.v1 import buffer_pb2
from trinity.errors import RunFailed
from trinity.run.launch import messages, run
from trinity.run.launch.run import LocalRun
from trinity.run.local.run_file import read_running
from trinity.run.local.stack import LocalStack
from trinity.run.progress.view import RunView


@dataclass
class Lines:
    """A reporter that remembers what it is told."""

    said: list[str] = field(default_factory=list)

    def print_line(self, text: str) -> None:
        self.said.append(text)

    def event(self, view: RunView, event: buffer_pb2.ProgressEvent) -> None:
        """One that tells that all services are at work."""
        self.said.append(f"told of a {event.WhichOneof('event')}")

    def refresh(self, view: RunView) -> None:
        """Nothing is drawn."""

    def close(self) -> None:
        """Nothing is held."""

    async def until(self, launched: asyncio.Task[Any], *words: str) -> None:
        """Wait for a line with all these words."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not any(all(word in line for word in words) for line in self.said):
            if launched.done():
                await launched
            assert time.monotonic() < deadline, self.said
            await asyncio.sleep(0.05)


def without_model(
    *,
    job_dir: Path,
    log_level: str,
    environment: Mapping[str, Mapping[str, str]],
    services: object,
    secure: bool,
    tenant: str,
    log_folder: str,
    gpus: object,
    hosts: object,
) -> LocalStack:
    """A stack whose parts are not started again."""
    del log_level, services, secure, tenant, log_folder, gpus, hosts
    return model_free_stack(job_dir, environment=environment, max_restarts=0)


async def test_the_launcher_says_what_holds_the_run_and_fails_when_it_is_gone_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "LocalStack", without_model)
    monkeypatch.setattr(messages, "STALL_SECONDS", 0.5)
    monkeypatch.setattr(messages, "DIAGNOSE_SECONDS", 0.2)
    plan = experiment_plan(
        tmp_path, buffer={"total_steps": 100_000}, monitor={"monitor_type": "none"}
    )
    lines = Lines()
    launched = asyncio.create_task(LocalRun(plan=plan, reporter=lines).run_to_end())
    await lines.until(launched, "told of a step")
    running = read_running(plan.job_path)
    assert running is not None
    pid = running.pids["postgres"]
    send(pid, signal.SIGSTOP)
    await lines.until(launched, "held up:", "Postgres", f"process {pid} is stopped")
    send(pid, signal.SIGCONT)
    await lines.until(launched, "no longer held up")
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(RunFailed, match=r"postgres: ended by signal 9 .* see .*postgres\.log"):
        await launched
