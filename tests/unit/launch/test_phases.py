"""The phases of a run leave no time out, however often it was started."""

from pathlib import Path

import pytest

from trinity.run.launch.run import SECONDS_FILE, PhaseTimer


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def spend(phases: PhaseTimer, clock: Clock, **seconds: float) -> None:
    """Phases of these lengths, one after the other."""
    for name, length in seconds.items():
        phases.begin(name)
        clock.now += length


def test_phases_follow_one_another_and_come_again() -> None:
    times = iter([0.0, 4.0, 10.0, 13.0, 14.0])
    phases = PhaseTimer("start", clock=lambda: next(times))
    phases.begin("rft")
    phases.begin("stop")
    phases.begin("rft")
    assert phases.seconds() == {"start": 4.0, "rft": 7.0, "stop": 3.0}


def test_a_resumed_run_counts_the_seconds_of_all_its_starts(tmp_path: Path) -> None:
    for _ in range(2):
        clock = Clock()
        starts = PhaseTimer("start", clock)
        starts.load_earlier(tmp_path)
        spend(starts, clock, start=4.001, rft=10.004, stop=1.0)
        starts.save(tmp_path)
    seconds = starts.of_all_starts()
    total = seconds.pop("total")
    assert seconds == {"start": 8.0, "rft": 20.01, "stop": 2.0}
    assert total == pytest.approx(sum(seconds.values()), abs=1e-9)


def test_kept_again_and_again_a_start_counts_once(tmp_path: Path) -> None:
    clock = Clock()
    starts = PhaseTimer("start", clock)
    starts.load_earlier(tmp_path)
    for _ in range(3):
        spend(starts, clock, rft=1.0)
        starts.save(tmp_path)
    assert starts.of_all_starts() == {"start": 0.0, "rft": 3.0, "total": 3.0}


def test_a_start_that_never_had_the_directory_leaves_its_seconds_alone(tmp_path: Path) -> None:
    (tmp_path / SECONDS_FILE).write_text('{"rft": 9.0}')
    PhaseTimer("start", Clock()).save(tmp_path)
    assert (tmp_path / SECONDS_FILE).read_text() == '{"rft": 9.0}'


@pytest.mark.parametrize("damaged", ["", "[1]", '{"rft": "long"}', '{"rft": null}'])
def test_a_damaged_file_of_seconds_keeps_no_run_from_starting(tmp_path: Path, damaged: str) -> None:
    (tmp_path / SECONDS_FILE).write_text(damaged)
    starts = PhaseTimer("start", Clock())
    starts.load_earlier(tmp_path)
    assert starts.of_all_starts()["total"] == 0.0
