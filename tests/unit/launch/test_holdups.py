"""What holds a run is said once, and once more when it is over."""

import pytest

from tests.unit.diagnosis.builders import member, snapshot, wait
from trinity.errors import RunFailed
from trinity.run.diagnosis.diagnose import diagnose
from trinity.run.diagnosis.rules import Diagnosis, DiagnosisState
from trinity.run.launch.messages import WORKING as WORKING_ALL_ALONG
from trinity.run.launch.messages import StallNotifier, without_startup
from trinity.runtime.members import MemberPhase

HELD = Diagnosis(state=DiagnosisState.HELD, cause="workflow", text="The run waits for a workflow.")
BROKEN = Diagnosis(
    state=DiagnosisState.BROKEN, cause="postgres", text="The run waits for Postgres."
)
WORKING = Diagnosis(state=DiagnosisState.WORKING, cause="", text="")


class Lines(list[str]):
    """What was said."""

    def print_line(self, text: str) -> None:
        self.append(text)


@pytest.fixture
def lines() -> Lines:
    return Lines()


@pytest.fixture
def holdups(lines: Lines) -> StallNotifier:
    return StallNotifier(lines, max_broken_seconds=60)


def test_a_cause_is_said_once_when_it_has_lasted_and_once_when_it_is_over(
    holdups: StallNotifier, lines: Lines
) -> None:
    for now in range(0, 30, 2):
        holdups.observe_diagnosis(HELD, now)
    assert lines == ["held up: The run waits for a workflow."]
    holdups.observe_diagnosis(WORKING, 31)
    assert lines[1:] == ["no longer held up: that lasted 31 s"]
    holdups.observe_diagnosis(WORKING, 33)
    assert len(lines) == 2


def test_a_model_that_is_loaded_is_told_of_elsewhere() -> None:
    loads = wait("trainer", "ranks", 90, "to report progress; the last report: starting the ranks")
    loading = snapshot(member("trainer", loads, phase=MemberPhase.PREPARING))
    assert diagnose(loading).state is DiagnosisState.HELD
    assert without_startup(diagnose(loading), loading) is WORKING_ALL_ALONG
    silent = snapshot(member("trainer", loads, activity="training"))
    assert without_startup(diagnose(silent), silent).state is DiagnosisState.HELD


def test_short_causes_and_causes_that_take_turns_are_not_said(
    holdups: StallNotifier, lines: Lines
) -> None:
    for now in range(0, 40, 2):
        holdups.observe_diagnosis(HELD if now % 8 else BROKEN, now)
    assert lines == []


def test_a_part_that_stays_broken_ends_the_run_and_slow_work_does_not(
    holdups: StallNotifier,
) -> None:
    for now in range(0, 600, 2):
        holdups.observe_diagnosis(HELD, now)
    holdups.observe_diagnosis(BROKEN, 600)
    holdups.observe_diagnosis(BROKEN, 659)
    with pytest.raises(RunFailed, match="no progress for 60 s: The run waits for Postgres"):
        holdups.observe_diagnosis(BROKEN, 660)
