"""A disk without room is named, whatever it looks like to those who want to write."""

import shutil
from pathlib import Path

import pytest

from tests.unit.diagnosis.builders import member, part, snapshot, wait
from trinity.run.diagnosis import gather
from trinity.run.diagnosis.diagnose import diagnose
from trinity.run.diagnosis.rules import DiagnosisState
from trinity.run.diagnosis.snapshot import ProcessState
from trinity.runtime.members import WaitKind

FOLDER = "/data/p/run"


def test_a_full_disk_is_the_cause_of_what_waits_for_the_broker() -> None:
    buffer = member("buffer", wait("buffer", "broker", 40.0, kind=WaitKind.NO_ANSWER))
    trainer = member("trainer", wait("trainer", "buffer", 41.0, kind=WaitKind.NO_ANSWER))
    verdict = diagnose(snapshot(trainer, buffer, full_disk=FOLDER))
    assert "What is seen of it: The run waits for the broker" in verdict.text
    assert (verdict.state, verdict.cause) == (DiagnosisState.BROKEN, "disk full")
    assert verdict.text.startswith(f"The disk of {FOLDER} is full: make room there.")


def test_a_full_disk_is_the_cause_of_a_database_that_is_gone() -> None:
    parts = (
        part("postgres", condition=ProcessState.GONE, last_log_line="No space left on device"),
    )
    verdict = diagnose(snapshot(parts=parts, full_disk=FOLDER))
    assert verdict.cause == "disk full"
    assert "What is seen of it: " in verdict.text


def test_a_run_that_still_gets_on_is_warned() -> None:
    verdict = diagnose(snapshot(full_disk=FOLDER))
    assert verdict.state is DiagnosisState.WORKING
    assert verdict.notes == (f"The disk of {FOLDER} is full: make room there.",)


@pytest.mark.parametrize(("free", "full"), [(0, True), (2**20, True), (2**30, False)])
def test_a_disk_is_full_when_next_to_nothing_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, full: bool
) -> None:
    usage = type(shutil.disk_usage(tmp_path))(2**40, 2**40 - free, free)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    assert gather.is_disk_full(tmp_path) is full


def test_a_directory_that_is_gone_is_no_full_disk(tmp_path: Path) -> None:
    assert not gather.is_disk_full(tmp_path / "gone")


def test_a_broker_that_refuses_is_not_looked_for_on_the_network() -> None:
    trainer = member("trainer", wait("trainer", "buffer", 41.0, kind=WaitKind.NO_ANSWER))
    for kind in (WaitKind.STATE, WaitKind.NO_ANSWER):
        buffer = member("buffer", wait("buffer", "broker", 40.0, "its disk is full", kind=kind))
        told = diagnose(snapshot(trainer, buffer)).text
        assert "its disk is full" in told
        assert ("network" in told) is (kind is WaitKind.NO_ANSWER)
