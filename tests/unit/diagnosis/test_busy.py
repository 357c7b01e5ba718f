"""A part that has work and is slow to answer is told apart from one that is gone or hangs."""

import pytest

from tests.unit.diagnosis.builders import part, snapshot, with_parts
from trinity.run.diagnosis.diagnose import diagnose
from trinity.run.diagnosis.rules import DiagnosisState
from trinity.run.diagnosis.snapshot import ComponentSnapshot, CpuDemand, ProbeState, ProcessState

STARVED = CpuDemand(worked_seconds=0.4, queued_seconds=8.1)
AT_WORK = CpuDemand(worked_seconds=9.7, queued_seconds=0.1)
UNKNOWN = "StatusCode.DEADLINE_EXCEEDED"


def busy(name: str, demand: CpuDemand, **changes: object) -> ComponentSnapshot:
    return part(name, reply=ProbeState.SILENT, asked_seconds=10.0, demand=demand, **changes)


def test_a_part_that_is_starved_is_said_to_live_and_what_else_takes_the_processors() -> None:
    now = with_parts(snapshot(work=None, unanswered=UNKNOWN), busy("buffer", STARVED))
    verdict = diagnose(now)
    assert verdict.state is DiagnosisState.HELD
    assert verdict.text.startswith(
        "The buffer lives and is slow to answer: in the 10 s that it was given, its process 100 "
        "worked for 0.4 s and waited for a processor for 8.1 s."
    )
    assert "more work than processors" in verdict.text
    assert "kill" not in verdict.text and "does not answer" not in verdict.text


def test_a_part_that_works_all_the_time_may_do_so_for_ever() -> None:
    now = with_parts(snapshot(work=None, unanswered=UNKNOWN), busy("buffer", AT_WORK))
    verdict = diagnose(now)
    assert "worked for 9.7 s" in verdict.text and "Ask again in a moment" in verdict.text
    assert "if this lasts, `kill -KILL 100` has it restarted" in verdict.text
    assert "/run/log/buffer.log" in verdict.text


def test_while_the_others_tell_how_things_stand_a_slow_part_is_a_note() -> None:
    verdict = diagnose(with_parts(snapshot(), busy("explorer", STARVED)))
    assert verdict.state is DiagnosisState.WORKING
    assert any("The explorer lives and is slow to answer" in note for note in verdict.notes)


def test_a_slow_part_does_not_stand_for_another_that_cannot_say_how_things_stand() -> None:
    now = with_parts(
        snapshot(work=None, unanswered="the database does not answer"), busy("explorer", STARVED)
    )
    verdict = diagnose(now)
    assert verdict.text.startswith("The run waits for the buffer, which is alive but cannot report")
    assert "the database does not answer" in verdict.text


def test_a_slow_part_hides_none_that_is_gone() -> None:
    now = with_parts(
        snapshot(members=None, work=None, unanswered=UNKNOWN),
        busy("postgres", STARVED),
        part("buffer", condition=ProcessState.GONE),
    )
    assert diagnose(now).text.startswith("The run waits for the buffer: its process 100 is gone")


def test_a_slow_part_that_nobody_has_heard_of_is_not_missed() -> None:
    from_explorer = snapshot()
    members = tuple(one for one in from_explorer.members or () if one.role != "explorer")
    verdict = diagnose(with_parts(snapshot(members=members), busy("explorer", STARVED)))
    assert verdict.text.startswith("The explorer lives and is slow to answer")


@pytest.mark.parametrize("demand", [CpuDemand(), CpuDemand(0.1, 0.2)])
def test_a_part_that_has_no_work_and_says_nothing_hangs(demand: CpuDemand) -> None:
    verdict = diagnose(with_parts(snapshot(), busy("buffer", demand)))
    assert verdict.state is DiagnosisState.BROKEN
    assert "takes connections and does not answer" in verdict.text
