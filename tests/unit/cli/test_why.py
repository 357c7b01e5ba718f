"""`trinity why` looks where the stack of a run is, which may be another run's directory."""

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.unit.diagnosis.builders import snapshot
from trinity.cli.why import why
from trinity.run.diagnosis.snapshot import SystemSnapshot
from trinity.run.local.addresses import ServiceAddresses, write_stack_directory
from trinity.run.local.reaper import JobLock
from trinity.run.local.run_file import RunningStack


def test_the_logs_of_a_run_in_anothers_stack_are_looked_for_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, beside = tmp_path / "home", tmp_path / "beside"
    home.mkdir()
    beside.mkdir()
    write_stack_directory(beside, home)
    lock = JobLock.acquire(home)
    RunningStack(
        addresses=ServiceAddresses.with_free_ports(nats_url="", postgres_dsn="", security_dir=""),
        launcher_pid=os.getpid(),
        supervisor_pid=1,
        pids={},
        started_at=datetime.now(UTC),
    ).write_run_file(home)
    looked_in = []

    async def gather(_: RunningStack, job_dir: Path) -> SystemSnapshot:
        looked_in.append(job_dir)
        return snapshot()

    monkeypatch.setattr("trinity.cli.why.gather", gather)
    why(None, beside)
    lock.release()
    assert looked_in == [home]
