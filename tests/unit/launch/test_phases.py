"""The phases of a run leave no time out."""

from trinity.launch.phases import Phases


def test_phases_follow_one_another_and_add_up() -> None:
    times = iter([0.0, 4.0, 10.0, 13.0, 14.0])
    phases = Phases("start", clock=lambda: next(times))
    phases.begin("rft")
    phases.begin("stop")
    phases.begin("rft")
    assert phases.seconds() == {"start": 4.0, "rft": 7.0, "stop": 3.0, "total": 14.0}
