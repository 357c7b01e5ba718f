"""What runs in a directory is told while the very process lives that has written it down."""

import os
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from trinity.errors import UserError
from trinity.run.local import reaper
from trinity.run.local.addresses import ServiceAddresses
from trinity.run.local.reaper import (
    LOCK_FILE,
    WANTED_FILE,
    JobLock,
    is_wanted,
    lock_owner_pid,
    refuse_if_locked,
    viewer_pid,
)
from trinity.run.local.run_file import RunningStack, read_running

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


def view_until_wanted(job_dir: Path) -> threading.Thread:
    """Holds the lock only to view, and gives it up when it is wanted."""
    lock = JobLock.acquire(job_dir, only_views=True)

    def give_way() -> None:
        while not is_wanted(job_dir):
            time.sleep(0.01)
        lock.release()

    thread = threading.Thread(target=give_way)
    thread.start()
    return thread


def test_a_viewer_gives_way_to_a_run(tmp_path: Path) -> None:
    viewing = view_until_wanted(tmp_path)
    assert viewer_pid(tmp_path) == os.getpid() == lock_owner_pid(tmp_path)
    refuse_if_locked(tmp_path)
    lock = JobLock.acquire(tmp_path)
    viewing.join()
    assert viewer_pid(tmp_path) is None
    assert lock_owner_pid(tmp_path) == os.getpid()
    assert not is_wanted(tmp_path)
    lock.release()


def test_a_run_gives_way_to_nothing_and_two_viewers_not_to_each_other(tmp_path: Path) -> None:
    lock = JobLock.acquire(tmp_path)
    assert viewer_pid(tmp_path) is None
    for only_views in (True, False):
        with pytest.raises(UserError, match="another `trinity run`"):
            JobLock.acquire(tmp_path, only_views=only_views)
    lock.release()
    lock = JobLock.acquire(tmp_path, only_views=True)
    with pytest.raises(UserError):
        JobLock.acquire(tmp_path, only_views=True)
    assert not is_wanted(tmp_path)
    lock.release()


def test_a_viewer_that_does_not_give_way_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reaper, "_CLEAN_UP_SECONDS", 0.2)
    lock = JobLock.acquire(tmp_path, only_views=True)
    with pytest.raises(UserError, match=f"process {os.getpid()} views the run in"):
        JobLock.acquire(tmp_path)
    lock.release()


def test_a_request_that_came_too_late_does_not_close_the_next_view(tmp_path: Path) -> None:
    (tmp_path / WANTED_FILE).touch()
    lock = JobLock.acquire(tmp_path, only_views=True)
    assert not is_wanted(tmp_path)
    lock.release()
