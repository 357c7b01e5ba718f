"""What runs in a directory is told while the very process lives that has written it down."""

import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from trinity.errors import UserError
from trinity.local import reaper
from trinity.local.addresses import ServiceAddresses
from trinity.local.reaper import LOCK_FILE, JobLock, lock_owner_pid
from trinity.local.run_file import RunningStack, read_running

HELD_BY_ANOTHER = """
import fcntl, sys
file = open(sys.argv[1], "a")
fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


def write_run_file(job_dir: Path) -> None:
    RunningStack(
        addresses=ServiceAddresses.with_free_ports(nats_url="", postgres_dsn="", security_dir=""),
        launcher_pid=os.getpid(),
        supervisor_pid=1,
        pids={},
        started_at=datetime.now(UTC),
    ).write_run_file(job_dir)


def leave_lock_of_my_number(job_dir: Path) -> None:
    """What a killed launcher left that had the number which is this process's by now."""
    lock = JobLock.acquire(job_dir)
    os.close(lock.descriptor)
    written = (job_dir / LOCK_FILE).read_text().split()
    (job_dir / LOCK_FILE).write_text(f"{written[0]} 1")


def test_a_run_file_is_believed_while_its_launcher_holds_the_lock(tmp_path: Path) -> None:
    lock = JobLock.acquire(tmp_path)
    write_run_file(tmp_path)
    running = read_running(tmp_path)
    assert running is not None
    assert running.launcher_pid == os.getpid()
    lock.release()
    assert read_running(tmp_path) is None


def test_a_number_that_is_anothers_by_now_is_no_run(tmp_path: Path) -> None:
    leave_lock_of_my_number(tmp_path)
    write_run_file(tmp_path)
    assert lock_owner_pid(tmp_path) is None
    assert read_running(tmp_path) is None


def test_what_is_still_cleaned_up_is_awaited_though_its_number_is_anothers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_lock_of_my_number(tmp_path)
    monkeypatch.setattr(reaper, "_CLEAN_UP_SECONDS", 0.2)
    argv = [sys.executable, "-c", HELD_BY_ANOTHER, str(tmp_path / LOCK_FILE)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdin is not None
        other.stdout.readline()
        with pytest.raises(UserError, match="left over from an earlier run"):
            JobLock.acquire(tmp_path)
        monkeypatch.setattr(reaper, "_CLEAN_UP_SECONDS", 30.0)
        other.stdin.close()
        JobLock.acquire(tmp_path).release()
