"""The lock of a shared device: one holder at a time, freed by death, ended by silence."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from trinity.errors import RunFailed
from trinity.runtime.device_lock import (
    DeviceLock,
    Holder,
    HolderWatch,
    WantedDevice,
    device_lock_path,
    is_wanted,
    kill_and_see_dead,
    read_holder,
)

HOLDS = """
import sys
from pathlib import Path
from trinity.runtime.device_lock import DeviceLock, Holder
assert DeviceLock(Path(sys.argv[1])).try_take(Holder.of_this_process("engine", "to roll out"))
print("held", flush=True)
sys.stdin.read()
"""
WISHES = """
import sys
from pathlib import Path
from trinity.runtime.device_lock import WantedDevice
wish = WantedDevice(Path(sys.argv[1]))
wish.show()
print("held", flush=True)
sys.stdin.read()
"""
OWN = Holder.of_this_process("trainer", "to train step 1")


@contextmanager
def another_process_holding(path: Path, program: str = HOLDS) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


class Clock:
    """Time that passes when the test says so."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_one_handle_has_it_at_a_time(tmp_path: Path) -> None:
    path = device_lock_path(tmp_path)
    one, other = DeviceLock(path), DeviceLock(path)
    assert one.try_take(OWN)
    assert one.try_take(OWN), "it has it already"
    assert not other.try_take(OWN)
    assert not other.take(OWN, seconds=0.02)
    one.release()
    assert other.take(OWN, seconds=0.02)
    assert not one.is_held and other.is_held


def test_a_child_that_was_forked_meanwhile_does_not_keep_it(tmp_path: Path) -> None:
    path = device_lock_path(tmp_path)
    one, other = DeviceLock(path), DeviceLock(path)
    assert one.try_take(OWN)
    child = os.fork()
    if not child:
        signal.pause()
        os._exit(0)
    try:
        one.release()
        assert other.try_take(OWN)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_its_file_says_who_has_it_and_what_for(tmp_path: Path) -> None:
    lock = DeviceLock(tmp_path / "lock")
    assert read_holder(tmp_path / "lock") is None
    lock.try_take(OWN)
    assert read_holder(tmp_path / "lock") == OWN
    assert OWN.process.startswith(f"process {os.getpid()} of the trainer on ")
    lock.release()
    lock.release()
    assert read_holder(tmp_path / "lock") is None


def test_the_lock_goes_with_the_process_that_holds_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with another_process_holding(path) as process:
        assert not DeviceLock(path).try_take(OWN)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert DeviceLock(path).try_take(OWN)


def test_a_holder_may_say_anew_what_it_works_on(tmp_path: Path) -> None:
    lock, later = DeviceLock(tmp_path / "lock"), replace(OWN, reason="to train step 2")
    assert lock.try_take(OWN)
    lock.describe(later)
    assert read_holder(tmp_path / "lock") == later
    assert not DeviceLock(tmp_path / "lock").try_take(OWN), "it has never let go"


def test_a_wish_is_seen_until_it_is_withdrawn(tmp_path: Path) -> None:
    path = device_lock_path(tmp_path)
    one, other = WantedDevice(path), WantedDevice(path)
    assert not is_wanted(path)
    one.show()
    one.show()
    other.show()
    assert is_wanted(path)
    one.withdraw()
    assert is_wanted(path), "there are two"
    other.withdraw()
    other.withdraw()
    assert not is_wanted(path)


def test_a_wish_does_not_keep_the_device_from_others(tmp_path: Path) -> None:
    wish = WantedDevice(tmp_path / "lock")
    wish.show()
    assert DeviceLock(tmp_path / "lock").try_take(OWN)
    wish.withdraw()


def test_a_wish_goes_with_the_process_that_has_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with another_process_holding(path, WISHES) as process:
        assert is_wanted(path)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert not is_wanted(path)


def test_a_silent_holder_is_killed_and_dead_before_the_next_is_let_in(tmp_path: Path) -> None:
    path, clock = tmp_path / "lock", Clock()
    with another_process_holding(path) as process:
        process.send_signal(signal.SIGSTOP)
        watch = HolderWatch(path, silence_seconds=60, clock=clock)
        assert watch.end_silent_holder() is None
        clock.now = 59
        assert watch.end_silent_holder() is None
        clock.now = 61
        killed = watch.end_silent_holder()
        assert killed is not None and killed.pid == process.pid
        assert DeviceLock(path).try_take(OWN)
        assert process.wait() == -signal.SIGKILL


def test_a_holder_that_shows_life_is_left_alone(tmp_path: Path) -> None:
    path, clock = tmp_path / "lock", Clock()
    with another_process_holding(path) as process:
        watch = HolderWatch(path, silence_seconds=60, clock=clock)
        for minute in range(5):
            clock.now = 60.0 * minute
            os.utime(path, (minute, minute))
            assert watch.end_silent_holder() is None
        assert process.poll() is None


def test_another_process_of_the_number_is_left_alone() -> None:
    kill_and_see_dead(replace(OWN, started=OWN.started + 1))


def test_a_process_that_is_gone_needs_no_killing() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    kill_and_see_dead(replace(OWN, pid=process.pid))


def test_a_holder_on_another_machine_is_named() -> None:
    with pytest.raises(RunFailed, match="on elsewhere, which is not this machine: end it"):
        kill_and_see_dead(replace(OWN, host="elsewhere"))


def test_half_a_line_is_nobody(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text('{"role": "trai')
    assert read_holder(tmp_path / "lock") is None
