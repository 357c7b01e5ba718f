"""Of several parts that do not work, the one is named that the others suffer from."""

from tests.unit.diagnosis.builders import part, snapshot, with_parts
from trinity.run.diagnosis.diagnose import diagnose
from trinity.run.diagnosis.snapshot import ComponentSnapshot, ProbeState, ProcessState

GONE = part("explorer", condition=ProcessState.GONE, reply=ProbeState.REFUSES)
SILENT = part("postgres", reply=ProbeState.SILENT, asked_seconds=0.5)


def cause_with(*parts: ComponentSnapshot) -> str:
    return diagnose(with_parts(snapshot(), *parts)).cause


def test_who_was_slow_to_answer_comes_after_a_process_that_is_gone() -> None:
    assert cause_with(SILENT, GONE) == "explorer gone refuses"


def test_who_refuses_comes_before_a_process_that_died_of_it() -> None:
    refusing = part("postgres", condition=ProcessState.FOREIGN, reply=ProbeState.REFUSES)
    assert cause_with(refusing, GONE) == "postgres foreign refuses"


def test_where_all_processes_live_the_first_that_is_silent_is_named() -> None:
    refusing = part("buffer", reply=ProbeState.REFUSES)
    assert cause_with(SILENT, refusing) == "postgres running silent"
