"""Who works and does not come to answer is asked once more, and told from one that hangs."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from trinity.run.diagnosis import gather
from trinity.run.diagnosis.snapshot import ComponentSnapshot, ProbeState
from trinity.run.local.addresses import ServiceAddresses
from trinity.run.local.run_file import RunningStack

LISTEN = "import socket; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1])"
SPIN = "while True: pass"
ADDRESSES = ("synchronizer", "buffer", "trainer", "explorer", "nats_url", "postgres_dsn")
HANG = "import sys; sys.stdin.read()"
RETRY_SECONDS = 0.5 + gather.ANSWER_SECONDS
"""A process that works takes a processor until then."""


@contextmanager
def mute(then: str) -> Iterator[tuple[int, str]]:
    """The process and the address of somebody who takes connections and says nothing."""
    program = f"{LISTEN}\nimport sys; sys.stdout.flush()\n{then}"
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        yield process.pid, f"127.0.0.1:{process.stdout.readline().strip()}"
    finally:
        process.kill()
        process.communicate()


async def buffer_of(process: tuple[int, str], job_dir: Path) -> ComponentSnapshot:
    pid, address = process
    running = RunningStack(
        addresses=ServiceAddresses(**dict.fromkeys(ADDRESSES, address)),
        launcher_pid=pid,
        supervisor_pid=pid,
        pids={"buffer": pid},
        started_at=datetime.now(UTC),
    )
    part = (await gather.gather(running, job_dir)).part("buffer")
    assert part is not None
    return part


@pytest.mark.parametrize(
    ("then", "is_busy", "seconds"),
    [(SPIN, True, RETRY_SECONDS), (HANG, False, gather.ANSWER_SECONDS)],
)
async def test_who_works_is_asked_once_more_and_known_to_live(
    then: str, is_busy: bool, seconds: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gather, "RETRY_ANSWER_SECONDS", RETRY_SECONDS)
    with mute(then) as process:
        part = await buffer_of(process, tmp_path)
    assert part.reply is ProbeState.SILENT
    assert (part.is_busy, part.asked_seconds) == (is_busy, seconds)
