"""A process that dies now and then is started again for ever, one that cannot live is given up."""

import os
from pathlib import Path

import pytest

from trinity.run.local import supervisor as module
from trinity.run.local.process_spec import ProcessSpec
from trinity.run.local.supervisor import ChildProcess


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


@pytest.fixture
def child(monkeypatch: pytest.MonkeyPatch) -> ChildProcess:
    monkeypatch.setattr(os, "posix_spawn", lambda *_, **__: 1)
    return ChildProcess(ProcessSpec(name="x", argv=["/x"], log_file=Path("/x.log"), max_restarts=5))


def test_a_process_that_lives_a_while_is_always_started_again_at_once(
    child: ChildProcess, clock: Clock
) -> None:
    for _ in range(20):
        child.start()
        clock.now += 300.0
        assert child.may_restart
        assert child.next_restart_delay() < 0.5


def test_a_process_that_cannot_live_is_tried_again_ever_later_and_given_up(
    child: ChildProcess, clock: Clock
) -> None:
    delays = []
    while child.may_restart:
        child.start()
        clock.now += 1.0
        delays.append(child.next_restart_delay())
    assert delays == [0.4, 0.8, 1.6, 3.2, 5.0]
