"""Whatever is killed with SIGKILL, nothing of the stack stays."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.integration.local import launcher
from tests.integration.local.stacks import (
    Watched,
    next_event,
    no_services,
    one_service,
    read_pid,
    running_stack,
)
from trinity.run.local.infrastructure import ExternalServers
from trinity.run.local.process_spec import EventKind
from trinity.run.local.stack import LocalStack

_PROMISED_SECONDS = 15.0
_REPOSITORY = Path(__file__).parents[3]


@contextmanager
def _launched(job_dir: Path) -> Iterator[tuple[subprocess.Popen[str], Watched]]:
    with subprocess.Popen(
        [sys.executable, "-m", launcher.__name__, str(job_dir)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=_REPOSITORY,
    ) as process:
        assert process.stdout is not None
        pids = json.loads(process.stdout.readline())
        yield process, Watched(pids)


def test_a_killed_launcher_leaves_nothing_running(tmp_path: Path) -> None:
    with _launched(tmp_path) as (process, watched):
        process.kill()
        watched.wait_for_ends(_PROMISED_SECONDS)


async def test_a_start_after_a_kill_waits_for_the_clean_up_and_works(tmp_path: Path) -> None:
    with _launched(tmp_path) as (process, watched):
        process.kill()
        process.wait()
        async with LocalStack(job_dir=tmp_path, externals=ExternalServers(), services=no_services):
            watched.wait_for_ends(0.0)


async def test_a_killed_supervisor_leaves_nothing_running_and_is_told(tmp_path: Path) -> None:
    grandchild = tmp_path / "grandchild"
    async with LocalStack(
        job_dir=tmp_path,
        externals=ExternalServers(),
        services=one_service("--grandchild", str(grandchild)),
    ) as stack:
        watched = Watched([*stack.pids.values(), read_pid(grandchild)])
        os.kill(running_stack(tmp_path).supervisor_pid, signal.SIGKILL)
        failure = await next_event(stack, EventKind.FAILED, "supervisor")
        assert failure.log_file.endswith("supervisor.log")
        watched.wait_for_ends()


async def test_what_outlived_launcher_and_supervisor_ends_at_the_next_start(
    tmp_path: Path,
) -> None:
    with _launched(tmp_path) as (process, watched):
        supervisor = running_stack(tmp_path).supervisor_pid
        process.send_signal(signal.SIGSTOP)
        os.kill(supervisor, signal.SIGKILL)
        process.kill()
        process.wait()
        async with LocalStack(job_dir=tmp_path, externals=ExternalServers(), services=no_services):
            watched.wait_for_ends()
